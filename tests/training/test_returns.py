"""Faults: the run returns, leaves the suspect batches out, says so, and comes to the same end however it is killed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.stopping import Interrupted
from nanocode.training.checkpoint import Checkpointer, Saved
from nanocode.training.guard import SpikeGuard, TrainingError
from nanocode.training.journal import Journal
from nanocode.training.loop import Rules, train
from nanocode.training.step import TrainState


class Killed(BaseException):
    """Stands for a machine that goes away."""


@dataclass
class MemoryCheckpointer:
    """Checkpoints that are committed at once; the newest two are kept."""

    kept: dict[int, tuple[TrainState, str, Mapping[str, Any]]] = field(default_factory=dict)
    busy: bool = False

    def save(self, number: int, state: TrainState, notes: Callable[[], str], details: Mapping[str, Any]) -> None:
        assert np.isfinite(state.parameters["w"]), "a broken state is never saved"
        assert not self.kept or number > max(self.kept), "a later save never hides behind an earlier one"
        self.kept[number] = state, notes(), json.loads(json.dumps(details))
        for old in sorted(self.kept)[:-2]:
            del self.kept[old]

    def wait(self) -> None:
        pass

    def restore(self, like: Any, fits: Callable[[Mapping[str, Any]], bool]) -> Saved | None:
        for _, (state, notes, details) in sorted(self.kept.items(), reverse=True):
            if fits(details):
                return Saved(state, notes)
        return None


@dataclass
class Course:
    """A toy run: the weights mix in every batch, `spoilt` batches show a fault at once, `poison` one step later."""

    steps: int
    spoilt: frozenset[int] = frozenset()
    poison: frozenset[int] = frozenset()
    value: float = math.nan
    used: list[int] = field(default_factory=list)
    seconds: float = 0.0
    kill_after: int | None = None  # steps executed

    def step(self, state: TrainState, batch: int) -> tuple[TrainState, dict[str, float]]:
        if self.kill_after is not None and len(self.used) >= self.kill_after:
            raise Killed
        self.used.append(batch)
        self.seconds += 1.0
        weight = float(state.parameters["w"])
        spoilt = batch in self.spoilt or not math.isfinite(weight)
        loss = self.value if spoilt else 2.0 + math.sin(weight)
        after = math.nan if batch in self.spoilt | self.poison else math.fmod(1.7 * weight + batch, 3.1)
        return TrainState({"w": np.float64(after)}, (), np.int32(state.step + 1)), {"loss": loss}

    def run(self, checkpointer: Any, every: float = math.inf, max_returns: int = 5, **rules: Any) -> Any:
        return train(
            lambda: TrainState({"w": np.float64(0.5)}, (), np.int32(0)),
            self.step,
            lambda index: index,
            self.steps,
            checkpointer=checkpointer,
            guards=[SpikeGuard(12.0, 3.0)],
            rules=Rules(every * 8, max_returns, clock=lambda: self.seconds, **rules),
        )


def outcome(result: tuple[TrainState, Journal]) -> tuple[bytes, list[str]]:
    state, journal = result
    return state.parameters["w"].tobytes(), list(journal.lines())


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_spoilt_batch_is_left_out_with_the_one_before(value: float) -> None:
    course = Course(20, spoilt=frozenset({7}), value=value)
    _, journal = course.run(MemoryCheckpointer(), every=3.0)
    (event,) = journal.returns
    assert (event.step, event.skipped) == (8, (6, 7))
    assert event.fault == f"the loss became {value} at step 8"
    # Batches 20 and 21 would be the ones after the last: they are the first ones again.
    assert course.used == [*range(8), *range(3, 6), *range(8, 20), 0, 1]


def test_a_batch_that_breaks_the_weights_is_left_out_though_its_own_loss_was_fine() -> None:
    course = Course(20, poison=frozenset({7}))
    _, journal = course.run(MemoryCheckpointer(), every=1.0)
    assert [(event.step, event.skipped) for event in journal.returns] == [(9, (7, 8))]
    assert course.used[:11] == [*range(9), 9, 10], "it returned to just before batch 7"


def test_weights_that_the_last_batch_broke_are_not_the_outcome() -> None:
    course = Course(10, poison=frozenset({9}))
    state, journal = course.run(MemoryCheckpointer(), every=1.0)
    assert math.isfinite(state.parameters["w"])
    assert [(event.step, event.skipped) for event in journal.returns] == [(11, (9, 10))]


def test_a_second_return_reaches_twice_as_far() -> None:
    course = Course(30, spoilt=frozenset({10, 11, 12, 13, 14}))
    _, journal = course.run(MemoryCheckpointer(), every=1.0)
    assert [event.skipped for event in journal.returns] == [(9, 10), (7, 8, 11, 12), (3, 4, 5, 6, 13, 14, 15, 16)]
    assert journal.done == 30


def test_without_a_checkpoint_the_run_starts_again() -> None:
    course = Course(12, spoilt=frozenset({5}))
    _, journal = course.run(None)
    assert course.used == [*range(6), *range(4), *range(6, 12), 0, 1]
    assert journal.done == 12


@pytest.mark.parametrize("max_returns", [0, 2])
def test_faults_without_end_end_the_run_in_one_line(max_returns: int) -> None:
    course = Course(60, spoilt=frozenset(range(20, 60)))
    checkpointer = MemoryCheckpointer()
    with pytest.raises(TrainingError) as caught:
        course.run(checkpointer, every=1.0, max_returns=max_returns)
    after = f", after {max_returns} returns to a good checkpoint" if max_returns else ""
    assert str(caught.value).endswith(f"{after}: lower the learning rates")
    assert "the loss became nan at step" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert all(np.isfinite(state.parameters["w"]) for state, _, _ in checkpointer.kept.values())


def test_a_guard_that_trips_for_good_stops_the_run_before_a_save() -> None:
    class Final:
        def begin(self, history: Any) -> None:
            pass

        def judge(self, report: Any) -> None:
            if report.step == 3:
                raise TrainingError("displaced")

    course, checkpointer = Course(10), MemoryCheckpointer()
    with pytest.raises(TrainingError, match="displaced"):
        train(
            lambda: TrainState({"w": np.float64(0.5)}, (), np.int32(0)),
            *(course.step, lambda index: index, 10),
            checkpointer=checkpointer,
            guards=[Final()],
            rules=Rules(0.0, clock=lambda: course.seconds),
        )
    assert sorted(checkpointer.kept) == [1, 2]


@given(
    faults=st.lists(st.integers(0, 24), max_size=3, unique=True),
    late=st.booleans(),
    every=st.floats(1.0, 12.0),
    kills=st.lists(st.integers(1, 14), max_size=5),
    stop=st.booleans(),
)
def test_killed_anywhere_and_saved_anywhen_a_run_with_faults_ends_the_same(
    faults: list[int], late: bool, every: float, kills: list[int], stop: bool
) -> None:
    """Also in the middle of a return, and when the checkpoint that is found belongs to the course that was left."""
    kind = {"poison" if late else "spoilt": frozenset(faults)}
    undisturbed = outcome(Course(25, **kind).run(MemoryCheckpointer(), every=4.0))
    checkpointer = MemoryCheckpointer()
    for after in kills:
        course = Course(25, **kind, kill_after=after)
        try:
            if stop:
                course.kill_after = None
                course.run(checkpointer, every, stop_requested=lambda: len(course.used) >= after)  # noqa: B023
            else:
                course.run(checkpointer, every)
        except (Killed, Interrupted):
            pass
    assert outcome(Course(25, **kind).run(checkpointer, every)) == undisturbed


def test_a_return_through_the_real_checkpointer_ends_with_the_same_bytes(store: Any) -> None:
    kind = {"poison": frozenset({6})}
    undisturbed = outcome(Course(12, **kind).run(MemoryCheckpointer()))
    first = Checkpointer(store)
    with pytest.raises(Killed):
        Course(12, **kind, kill_after=10).run(first, every=1.0)
    first.close()
    second = Checkpointer(store)
    assert outcome(Course(12, **kind).run(second, every=1.0)) == undisturbed
    second.close()
