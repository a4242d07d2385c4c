"""The one training loop: pretraining, SFT and DPO differ in their loss and their batches, not in how they run.

A batch is a pure function of its number, so resuming needs no loader state: restore the newest checkpoint, go on at its
step, and the weights end byte-identical to an uninterrupted run on the same hardware. That holds through faults too: a
step that a guard objects to sends the run back to a good checkpoint, and which batches are then left out follows from
the step at which the fault shows, not from the checkpoint that happened to be there.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from nanocode.stopping import Interrupted
from nanocode.training.checkpoint import Checkpointer, shapes_of
from nanocode.training.guard import FiniteGuard, Guard, TrainingError, suspects
from nanocode.training.journal import Journal, Report, Return
from nanocode.training.step import TrainState

_EARLY_SAVES = 3  # each after half the time of the one that follows


class Listener(Protocol):
    """Is told of a run: the log, the metrics file, evaluations in between."""

    def begin(self, journal: Journal) -> None:
        """The run stands where `journal` says: at its start, after a resume, after a return."""

    def step(self, report: Report, state: TrainState, journal: Journal) -> None:
        """A good step was taken. The state is the listener's until it returns."""


@dataclass(frozen=True)
class Rules:
    """How a run is carried out.

    A save is due by time or by steps, whichever comes first, and after an evaluation that found the lowest value so far
    of the figure `keep_best`. `agree` makes one answer of what several processes say; alone, it is what one says.
    """

    checkpoint_every_seconds: float = math.inf
    max_returns: int = 3
    stop_requested: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = time.monotonic
    agree: Callable[[bool], bool] = lambda answer: answer
    traced: Callable[[int], AbstractContextManager[Any]] = lambda step: nullcontext()
    checkpoint_every_steps: int | None = None
    keep_best: str | None = None


def train(
    fresh: Callable[[], TrainState],
    step: Callable[[TrainState, Any], tuple[TrainState, Mapping[str, Any]]],
    batch: Callable[[int], Any],
    steps: int,
    *,
    checkpointer: Checkpointer | None = None,
    guards: Sequence[Guard] = (),
    listeners: Sequence[Listener] = (),
    rules: Rules = Rules(),
) -> tuple[TrainState, Journal]:
    """Take `steps` optimizer steps from `fresh()`, or from the newest checkpoint, on the batches from 0 on.

    At a fault the run returns to the newest checkpoint before the suspect batches (or to its start) and leaves them
    out; batches after the last one are the first ones again. Raises Interrupted, after a save, when asked to stop;
    TrainingError when a fault comes after `rules.max_returns` returns. A state with a value that is not finite is never
    saved.
    """
    run = _Run(fresh, step, batch, steps, checkpointer, (FiniteGuard(), *guards), listeners, rules)
    run.begin()
    while run.take_step() or run.has_broken_end():
        pass
    return run.state, run.journal


@dataclass
class _Run:
    """One run under way: the weights, the journal that belongs to them, and when they were last saved."""

    fresh: Callable[[], TrainState]
    step: Callable[[TrainState, Any], tuple[TrainState, Mapping[str, Any]]]
    batch: Callable[[int], Any]
    steps: int
    checkpointer: Checkpointer | None
    guards: Sequence[Guard]
    listeners: Sequence[Listener]
    rules: Rules

    def __post_init__(self) -> None:
        self.state, self.journal = self.fresh(), Journal(self.steps)
        self._saves, self._saved_at, self._saved_number = 0, self.rules.clock(), -1

    def begin(self) -> None:
        """Go on from the newest checkpoint, if there is one."""
        saved = self._restore(lambda position: True)
        if saved is not None:
            self.journal = saved
            self._saved_number = self.journal.executed
        self._tell_where_we_are()

    def take_step(self) -> bool:
        """One step, with all that may follow it: a return, a stop, a save. False when there is none to take."""
        done = self.journal.done
        if done >= self.steps:
            return False
        started = self.rules.clock()
        with self.rules.traced(done + 1):
            chosen = self.journal.source_of(self.journal.batch_of(done))
            state, values = self.step(self.state, self.batch(chosen))
            metrics = {name: float(value) for name, value in jax.device_get(dict(values)).items()}
        report = Report(done + 1, self.steps, self.rules.clock() - started, metrics)
        self.state = state
        fault = next((found for guard in self.guards if (found := guard.judge(report)) is not None), None)
        if fault is not None:
            self._return(f"the {fault} at step {report.step}")
            return True
        self.journal.add(report)
        for listener in self.listeners:
            listener.step(report, self.state, self.journal)
        self._stop_or_save()
        return True

    def has_broken_end(self) -> bool:
        """Whether the last update, which no later loss judges, broke the weights: then the run has returned."""
        broken = not bool(is_finite(self.state))
        if broken:
            self._return(f"the weights became infinite or no number at step {self.steps}")
        elif self.checkpointer is not None and self._saved_number != self.journal.executed:
            self._save()  # what follows the loop in a stage can be killed too
            self._settle()
        return broken

    def _stop_or_save(self) -> None:
        if self.journal.done == self.steps:
            return
        if self.rules.agree(self.rules.stop_requested()):
            if self.checkpointer is not None and is_finite(self.state):
                self._save()
                self._settle()
            raise Interrupted(f"stopped at step {self.journal.done} of {self.steps}; run the same command to continue")
        if self.checkpointer is not None and self.rules.agree(self._is_due()) and is_finite(self.state):
            self._save()

    def _is_due(self) -> bool:
        """Early saves come sooner, so that a kill soon after the start costs half of what was done and not all."""
        assert self.checkpointer is not None
        if self.rules.keep_best is not None and self.journal.is_best(self.rules.keep_best):
            return True
        steps = self.journal.executed - max(0, self._saved_number)
        is_enough = self.rules.checkpoint_every_steps is not None and steps >= self.rules.checkpoint_every_steps
        interval = self.rules.checkpoint_every_seconds / 2 ** max(0, _EARLY_SAVES - self._saves)
        is_time = self.rules.clock() - self._saved_at >= interval
        return (is_enough or is_time) and not self.checkpointer.busy and jax.process_index() == 0

    def _save(self) -> None:
        assert self.checkpointer is not None
        kept = self.journal.copy()
        figures = kept.figures()
        details = kept.position() | ({"figures": figures} if figures else {})
        self.checkpointer.save(kept.executed, self.state, kept.to_json, details)
        self._saves, self._saved_at, self._saved_number = self._saves + 1, self.rules.clock(), kept.executed

    def _settle(self) -> None:
        """Wait until the last save is committed, for every process: each will look for the newest checkpoint."""
        if self.checkpointer is not None:
            self.checkpointer.wait()
            self.rules.agree(True)

    def _return(self, fault: str) -> None:
        """Go back to before the suspect batches and leave them out. Raises TrainingError after too many returns."""
        journal, shown = self.journal, self.journal.done + 1
        if len(journal.returns) >= self.rules.max_returns:
            again = f", after {len(journal.returns)} returns to a good checkpoint" if journal.returns else ""
            raise TrainingError(f"{fault}{again}: lower the learning rates")
        first, left_out = suspects(journal)
        self._settle()
        saved = self._restore(lambda position: position["step"] <= first and journal.passes(position))
        journal.rewind(0 if saved is None else saved.done)
        journal.returns.append(Return(shown, fault, left_out))
        journal.executed += 1
        self._tell_where_we_are()

    def _restore(self, fits: Callable[[Mapping[str, Any]], bool]) -> Journal | None:
        """Take the newest state that fits, or the first one of all; the journal that was saved with it."""
        like = shapes_of(self.state)
        del self.state  # two would not fit everywhere
        saved = self.checkpointer.restore(like, fits) if self.checkpointer is not None else None
        self.state = self.fresh() if saved is None else saved.state
        return None if saved is None else Journal.from_json(saved.notes)

    def _tell_where_we_are(self) -> None:
        for guard in self.guards:
            guard.begin(self.journal.history)
        for listener in self.listeners:
            listener.begin(self.journal)


@jax.jit
def is_finite(state: Any) -> jax.Array:
    """Whether every number of a state is one. () bool."""
    floats = [leaf for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.array([jnp.all(jnp.isfinite(leaf)) for leaf in floats] or [True]))
