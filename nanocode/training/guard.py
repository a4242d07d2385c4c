"""What watches a run for faults: values that are not finite, and spikes of the loss.

A guard is a fold over the reports of a run. It keeps no state that the reports do not give, so a resumed run brings it
to where it was by showing it the history again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

from nanocode.training.journal import Journal, Report

_MEMORY = 0.95  # of the running mean of the loss, per step
_SETTLED_STEPS = 20  # before that, a loss may do what it likes


class TrainingError(RuntimeError):
    """Training that cannot go on: faults that came back, or a guard that tripped."""


class Guard(Protocol):
    """Sees every step of a run, in order."""

    def begin(self, history: Iterable[Report]) -> None:
        """Forget everything but these steps."""

    def judge(self, report: Report) -> str | None:
        """What is wrong with the step, as the end of "the ... "; None when nothing is.

        Raises TrainingError for what no return to a checkpoint can mend.
        """


class FiniteGuard:
    """Every value of a step is a number."""

    def begin(self, history: Iterable[Report]) -> None:
        del history

    def judge(self, report: Report) -> str | None:
        for name, value in report.metrics.items():
            if not math.isfinite(value):
                return f"{name} became {value}"
        return None


class RunningMean:
    """Exponential mean of a stream, corrected for its start: the first mean is the first value.

    After n values the weights sum to 1 - memory^n, n counting the newest one (Kingma and Ba 2015, section 3); a sum
    divided by the weight of one value less reads low at the start.
    """

    def __init__(self, memory: float) -> None:
        self._memory, self._sum, self._weight = memory, 0.0, 0.0

    def add(self, value: float) -> float:
        """The mean with `value` in it."""
        self._sum = self._memory * self._sum + (1 - self._memory) * value
        self._weight = self._memory * self._weight + (1 - self._memory)
        return self.mean

    @property
    def mean(self) -> float:
        return self._sum / self._weight if self._weight else 0.0


class SpikeGuard:
    """The loss stays within reach of its running mean: a step that lies both `deviations` mean absolute deviations and
    `nats` above it is a fault.

    Two bounds, because a loss near zero deviates by little and a noisy one by much.
    """

    def __init__(self, deviations: float, nats: float) -> None:
        self._deviations, self._nats = deviations, nats
        self.begin(())

    def begin(self, history: Iterable[Report]) -> None:
        self._seen = 0
        self._loss, self._deviation = RunningMean(_MEMORY), RunningMean(_MEMORY)
        for report in history:
            self._add(report.metrics["loss"])

    def judge(self, report: Report) -> str | None:
        loss, usual = report.metrics["loss"], self._loss.mean
        bound = max(self._nats, self._deviations * self._deviation.mean)
        if self._seen >= _SETTLED_STEPS and loss - usual > bound:
            return f"loss jumped from about {usual:.3f} to {loss:.3f}"
        self._add(loss)
        return None

    def _add(self, loss: float) -> None:
        if self._seen:
            self._deviation.add(abs(loss - self._loss.mean))
        self._loss.add(loss)
        self._seen += 1


def suspects(journal: Journal) -> tuple[int, tuple[int, ...]]:
    """Where to return to at most (steps done) and the batches to leave out, when the step after the journal's last one
    shows a fault.

    A loss is measured before its own batch has changed the weights, so the batch before is as suspect. Each further
    return of a run reaches twice as far in both directions: 1, 2, 4 ... batches back from the fault, as many on.
    """
    reach: int = 2 ** len(journal.returns)
    first = max(0, journal.done - reach)
    return first, tuple(journal.batch_of(step) for step in range(first, journal.done + reach))
