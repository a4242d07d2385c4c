from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.config import OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.training.checkpoint import Checkpointer
from nanocode.training.loop import Interrupted, Report, TrainingError, train
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.step import TrainState, initial_state, make_step, with_parameters

MakeModel = Callable[..., GPT]
STEPS = 6


class Killed(BaseException):
    """Stands for a machine that goes away."""


def batch(index: int) -> Batch:
    ids = np.random.default_rng(index).integers(0, 300, (2, 17))
    return Batch(ids, np.ones_like(ids), np.zeros_like(ids))


@pytest.fixture(scope="module")
def training(tiny_model: MakeModel) -> tuple[Callable[[], TrainState], Any]:
    """Makes fresh initial states of one tiny model, and its jitted step, compiled once."""
    optimizer = build_optimizer(OptimizerConfig(warmup_steps=2), STEPS)
    step = make_step(tiny_model(), lambda model, rows: (language_model_loss(model, rows), {}), optimizer)
    return lambda: initial_state(tiny_model(), optimizer), step


@pytest.fixture(scope="module")
def uninterrupted(training: Any) -> TrainState:
    fresh, step = training
    return train(fresh(), step, batch, STEPS)


def assert_identical(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.dtype == b.dtype
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


@pytest.mark.parametrize("stop_after", range(1, STEPS))
def test_a_run_that_was_asked_to_stop_ends_with_the_same_bits(
    training: Any, uninterrupted: TrainState, store: Any, stop_after: int
) -> None:
    fresh, step = training
    seen: list[int] = []
    with pytest.raises(Interrupted, match=f"stopped at step {stop_after} of {STEPS}"):
        train(
            *(fresh(), step, batch, STEPS),
            checkpointer=Checkpointer(store),
            observe=lambda report: seen.append(report.step),
            stop_requested=lambda: len(seen) >= stop_after,
        )
    assert store.saved == [stop_after]
    resumed = train(
        *(fresh(), step, batch, STEPS),
        checkpointer=Checkpointer(store),
        observe=lambda report: seen.append(report.step),
    )
    assert seen == list(range(1, STEPS + 1)), "no step is repeated or left out"
    assert_identical(resumed, uninterrupted)


@pytest.mark.parametrize("kill_before", [1, 2, 5])
def test_a_run_that_was_killed_ends_with_the_same_bits(
    training: Any, uninterrupted: TrainState, store: Any, kill_before: int
) -> None:
    """Checkpoints every second step; the steps since the last one are done again."""
    fresh, step = training
    now = 0.0

    def deadly(index: int) -> Batch:
        nonlocal now
        now += 1.0
        if index == kill_before:
            raise Killed
        return batch(index)

    first = Checkpointer(store)
    with pytest.raises(Killed):
        train(*(fresh(), step, deadly, STEPS), checkpointer=first, checkpoint_every_seconds=2, clock=lambda: now)
    first.close()
    asked: list[int] = []

    def recorded(index: int) -> Batch:
        asked.append(index)
        return batch(index)

    resumed = train(*(fresh(), step, recorded, STEPS), checkpointer=Checkpointer(store))
    assert asked == list(range(2 * (kill_before // 2), STEPS))
    assert_identical(resumed, uninterrupted)


def test_a_finished_run_asks_for_no_batch(training: Any, uninterrupted: TrainState, store: Any) -> None:
    fresh, step = training
    checkpointer = Checkpointer(store)
    checkpointer.save(STEPS, uninterrupted)
    checkpointer.wait()

    def none(index: int) -> Batch:
        raise AssertionError(f"batch {index} was asked for")

    assert_identical(train(fresh(), step, none, STEPS, checkpointer=checkpointer), uninterrupted)


def test_training_lowers_the_loss_and_reports_every_step(training: Any) -> None:
    fresh, step = training
    reports: list[Report] = []
    train(fresh(), step, lambda index: batch(0), STEPS, observe=reports.append)
    assert [(report.step, report.steps) for report in reports] == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert reports[-1].metrics["loss"] < reports[0].metrics["loss"] - 0.5


def test_the_trained_parameters_make_a_model(tiny_model: MakeModel, uninterrupted: TrainState) -> None:
    model = with_parameters(tiny_model(), uninterrupted.parameters)
    assert_identical(nnx.to_pure_dict(nnx.state(model, nnx.Param)), uninterrupted.parameters)
    assert int(uninterrupted.step) == STEPS


# --- the loop alone, with a step that only counts


class Recorder:
    """A checkpointer that keeps nothing but what it was asked to do."""

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.waits = 0

    def save(self, step: int, state: Any) -> None:
        assert int(state.step) == step
        self.saved.append(step)

    def wait(self) -> None:
        self.waits += 1

    def restore(self, like: Any) -> None:
        return None


def counting(loss: Callable[[int], float] = lambda step: 1.0) -> tuple[TrainState, Any]:
    def step(state: TrainState, rows: Any) -> tuple[TrainState, dict[str, float]]:
        return state._replace(step=state.step + 1), {"loss": loss(int(state.step) + 1), "extra": 2.0}

    return TrainState({}, (), np.int32(0)), step


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def passing(self, seconds: float) -> Callable[[int], None]:
        """A batch function that takes `seconds`."""

        def take(index: int) -> None:
            self.now += seconds

        return take


@pytest.mark.parametrize(
    ("seconds", "every", "expected"),
    [
        (4.0, 10.0, [3, 6, 9]),
        (5.0, 10.0, [2, 4, 6, 8]),  # not the last step: its result is the stage's output
        (30.0, 10.0, [1, 2, 3, 4, 5, 6, 7, 8, 9]),
        (1.0, 100.0, []),
        (1.0, math.inf, []),
    ],
)
def test_checkpoints_follow_the_clock(seconds: float, every: float, expected: list[int]) -> None:
    clock, recorder = Clock(), Recorder()
    train(
        *(*counting(), clock.passing(seconds), 10),
        checkpointer=recorder,  # type: ignore[arg-type]
        checkpoint_every_seconds=every,
        clock=clock,
    )
    assert recorder.saved == expected
    assert recorder.waits > 0, "the last save is committed before the run ends"


def test_the_report_holds_the_seconds_and_all_named_values() -> None:
    clock, reports = Clock(), []
    train(*counting(), clock.passing(3.0), 2, observe=reports.append, clock=clock)
    assert reports[1] == Report(2, 2, 3.0, {"loss": 1.0, "extra": 2.0})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(value: float) -> None:
    clock, recorder = Clock(), Recorder()
    with pytest.raises(TrainingError, match=f"the loss became {value} at step 3"):
        train(
            *(*counting(lambda step: value if step == 3 else 1.0), clock.passing(1.0), 10),
            checkpointer=recorder,  # type: ignore[arg-type]
            checkpoint_every_seconds=0.5,
            stop_requested=lambda: clock.now >= 103,
            clock=clock,
        )
    assert recorder.saved == [1, 2]


def test_a_guard_that_trips_stops_the_run_before_the_save() -> None:
    clock, recorder = Clock(), Recorder()

    def guard(report: Report) -> None:
        if report.step == 3:
            raise TrainingError("displaced")

    with pytest.raises(TrainingError, match="displaced"):
        train(
            *(*counting(), clock.passing(1.0), 10),
            checkpointer=recorder,  # type: ignore[arg-type]
            checkpoint_every_seconds=0.5,
            observe=guard,
            clock=clock,
        )
    assert recorder.saved == [1, 2]


def test_a_stop_saves_the_step_just_done_and_waits_for_it() -> None:
    recorder = Recorder()
    with pytest.raises(Interrupted):
        train(*counting(), lambda index: None, 10, checkpointer=recorder, stop_requested=lambda: True)  # type: ignore[arg-type]
    assert recorder.saved == [1]
    assert recorder.waits == 1


def test_a_stop_at_the_last_step_lets_the_run_finish() -> None:
    recorder = Recorder()
    state = train(*counting(), lambda index: None, 1, checkpointer=recorder, stop_requested=lambda: True)  # type: ignore[arg-type]
    assert (int(state.step), recorder.saved) == (1, [])


@pytest.mark.parametrize("stopping", [False, True])
def test_a_save_that_fails_fails_the_run(store: Any, stopping: bool) -> None:
    """Training on for hours without a checkpoint would be the silent alternative."""
    store.failing = OSError("the bucket is gone")
    start, step = counting()
    with pytest.raises(OSError, match="the bucket is gone"):
        train(
            *(start._replace(parameters={"x": np.ones(2)}), step, lambda index: None, 3),
            checkpointer=Checkpointer(store),
            checkpoint_every_seconds=0,
            stop_requested=lambda: stopping,
        )


def test_a_save_that_fails_before_a_broken_loss_does_not_hide_it(store: Any) -> None:
    start, step = counting(lambda count: math.nan if count == 2 else 1.0)
    checkpointer = Checkpointer(store)
    with pytest.raises(TrainingError, match="at step 2"):
        train(
            *(start._replace(parameters={"x": jnp.ones(2)}), step, lambda index: None, 3),
            checkpointer=checkpointer,
            checkpoint_every_seconds=0,
        )
    checkpointer.close()
    assert store.saved == [1]
