from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from nanocode.config import OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.stopping import Interrupted
from nanocode.training.checkpoint import Checkpointer
from nanocode.training.guard import SpikeGuard
from nanocode.training.journal import Journal, Report
from nanocode.training.loop import Rules, train
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.step import TrainState, initial_state, make_step, with_parameters

MakeModel = Callable[..., GPT]
STEPS = 6


class Killed(BaseException):
    """Stands for a machine that goes away."""


class Watching:
    """A listener that calls `seen` with every report."""

    def __init__(self, seen: Callable[[Report], object]) -> None:
        self.seen = seen
        self.begun: list[tuple[int, int]] = []

    def begin(self, journal: Journal) -> None:
        self.begun.append((journal.done, len(journal.returns)))

    def step(self, report: Report, state: TrainState, journal: Journal) -> None:
        assert int(state.step) == journal.done == report.step
        self.seen(report)


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
    return train(fresh, step, batch, STEPS)[0]


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
            *(fresh, step, batch, STEPS),
            checkpointer=Checkpointer(store),
            listeners=[Watching(lambda report: seen.append(report.step))],
            rules=Rules(stop_requested=lambda: len(seen) >= stop_after),
        )
    assert store.saved == [stop_after]
    resumed, journal = train(
        *(fresh, step, batch, STEPS),
        checkpointer=Checkpointer(store),
        listeners=[Watching(lambda report: seen.append(report.step))],
    )
    assert [report.step for report in journal.history] == list(range(1, STEPS + 1))
    assert seen == list(range(1, STEPS + 1)), "no step is repeated or left out"
    assert_identical(resumed, uninterrupted)


@pytest.mark.parametrize("kill_before", [1, 2, 5])
def test_a_run_that_was_killed_ends_with_the_same_bits(
    training: Any, uninterrupted: TrainState, store: Any, kill_before: int
) -> None:
    """Checkpoints every second step or sooner; the steps since the last one are done again."""
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
        train(*(fresh, step, deadly, STEPS), checkpointer=first, rules=Rules(2.0 * 8, clock=lambda: now))
    first.close()
    asked: list[int] = []

    def recorded(index: int) -> Batch:
        asked.append(index)
        return batch(index)

    resumed, _ = train(*(fresh, step, recorded, STEPS), checkpointer=Checkpointer(store))
    assert asked == list(range(store.saved[0] if kill_before > 1 else 0, STEPS))
    assert_identical(resumed, uninterrupted)


def test_a_finished_run_asks_for_no_batch(training: Any, uninterrupted: TrainState, store: Any) -> None:
    fresh, step = training
    checkpointer = Checkpointer(store)
    done = Journal(STEPS, [Report(index, STEPS, 0.1, {"loss": 1.0}) for index in range(1, STEPS + 1)], executed=STEPS)
    checkpointer.save(STEPS, uninterrupted, done.to_json, done.position())
    checkpointer.wait()

    def none(index: int) -> Batch:
        raise AssertionError(f"batch {index} was asked for")

    assert_identical(train(fresh, step, none, STEPS, checkpointer=checkpointer)[0], uninterrupted)
    assert store.saved == [STEPS]


def test_training_lowers_the_loss_and_reports_every_step(training: Any) -> None:
    fresh, step = training
    reports: list[Report] = []
    _, journal = train(fresh, step, lambda index: batch(0), STEPS, listeners=[Watching(reports.append)])
    assert journal.history == reports
    assert [(report.step, report.steps) for report in reports] == [(step, STEPS) for step in range(1, STEPS + 1)]
    assert reports[-1].metrics["loss"] < reports[0].metrics["loss"] - 0.5


def test_the_trained_parameters_make_a_model(tiny_model: MakeModel, uninterrupted: TrainState) -> None:
    model = with_parameters(tiny_model(), uninterrupted.parameters)
    assert_identical(nnx.to_pure_dict(nnx.state(model, nnx.Param)), uninterrupted.parameters)
    assert int(uninterrupted.step) == STEPS


# --- the loop alone, with a step that only counts


class Recorder:
    """A checkpointer that keeps nothing but what it was asked to do."""

    busy = False

    def __init__(self) -> None:
        self.saved: list[int] = []
        self.waits = 0

    def save(self, number: int, state: TrainState, notes: Callable[[], str], details: Any) -> None:
        assert details == {"step": int(state.step), "skipped": []}
        assert Journal.from_json(notes()).done == int(state.step)
        self.saved.append(number)

    def wait(self) -> None:
        self.waits += 1

    def restore(self, like: Any, fits: Any) -> None:
        return None


def counting(loss: Callable[[int], float] = lambda step: 1.0) -> tuple[Callable[[], TrainState], Any]:
    def step(state: TrainState, rows: Any) -> tuple[TrainState, dict[str, float]]:
        return state._replace(step=state.step + 1), {"loss": loss(int(state.step) + 1), "extra": 2.0}

    return lambda: TrainState({"x": np.ones(2)}, (), np.int32(0)), step


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
        (1.0, 8.0, [1, 3, 7, 15, 20]),  # after 1, 2, 4 and 8 seconds, and at the end
        (1.0, 2.0, [1, 2, 3, 5, 7, 9, 11, 13, 15, 17, 19, 20]),
        (30.0, 10.0, list(range(1, 21))),
        (1.0, 1000.0, [20]),
        (1.0, math.inf, [20]),
    ],
)
def test_checkpoints_follow_the_clock_and_the_first_ones_come_sooner(
    seconds: float, every: float, expected: list[int]
) -> None:
    clock, recorder = Clock(), Recorder()
    train(
        *(*counting(), clock.passing(seconds), 20),
        checkpointer=recorder,  # type: ignore[arg-type]
        rules=Rules(every, clock=clock),
    )
    assert recorder.saved == expected
    assert recorder.waits > 0, "the last save is committed before the run ends"


def test_a_save_that_is_due_while_another_is_being_written_waits_for_a_later_step() -> None:
    """A slow store must not hold up training."""
    clock, recorder = Clock(), Recorder()

    def work(index: int) -> None:
        clock.now += 1.0
        recorder.busy = 4 <= index < 8

    train(*(*counting(), work, 11), checkpointer=recorder, rules=Rules(2.0, clock=clock))  # type: ignore[arg-type]
    assert recorder.saved == [1, 2, 3, 9, 11]


@pytest.mark.parametrize(("every", "saved"), [(3, [3, 6, 9, 10]), (5, [5, 10]), (20, [10])])
def test_saves_can_be_due_by_steps(every: int, saved: list[int]) -> None:
    recorder = Recorder()
    rules = Rules(checkpoint_every_steps=every)
    train(*counting(), lambda index: None, 10, checkpointer=recorder, rules=rules)  # type: ignore[arg-type]
    assert recorder.saved == saved


def test_steps_count_from_the_checkpoint_that_a_run_goes_on_from(store: Any) -> None:
    arguments = (*counting(), lambda index: None)
    rules = Rules(checkpoint_every_steps=4)
    with pytest.raises(Interrupted):
        stopped = replace(rules, stop_requested=lambda: True)
        train(*arguments, 10, checkpointer=Checkpointer(store), rules=stopped)
    train(*arguments, 10, checkpointer=Checkpointer(store, keep=9), rules=rules)
    assert store.saved[:2] == [1, 5]


class Evaluating:
    """A listener that measures what it is told after some steps."""

    def __init__(self, figures: dict[int, float]) -> None:
        self.figures = figures

    def begin(self, journal: Journal) -> None:
        pass

    def step(self, report: Report, state: TrainState, journal: Journal) -> None:
        if report.step in self.figures:
            journal.observations.append({"step": report.step, "bpb": self.figures[report.step], "samples": ["text"]})


def test_an_evaluation_that_found_the_best_so_far_is_followed_by_a_save_that_says_so(store: Any) -> None:
    details: list[Any] = []
    save = store.save
    store.save = lambda step, folder, given: details.append(given) or save(step, folder, given)
    measured = {2: 3.0, 4: 1.5, 6: 2.0, 8: 1.5, 9: math.nan}
    rules = Rules(keep_best="bpb")
    listeners = [Evaluating(measured)]
    train(
        *(*counting(), lambda index: None, 10),
        checkpointer=Checkpointer(store, best="bpb"),
        listeners=listeners,
        rules=rules,
    )
    assert store.saved == [2, 4, 10]
    assert [each.get("figures") for each in details] == [{"bpb": 3.0}, {"bpb": 1.5}, None]


def test_without_evaluations_there_is_no_best(store: Any) -> None:
    train(
        *(*counting(), lambda index: None, 10),
        checkpointer=Checkpointer(store, best="bpb"),
        rules=Rules(keep_best="bpb"),
    )
    assert store.saved == [10]


def test_the_report_holds_the_seconds_and_all_named_values() -> None:
    clock = Clock()
    reports: list[Report] = []
    train(*counting(), clock.passing(3.0), 2, listeners=[Watching(reports.append)], rules=Rules(clock=clock))
    assert reports[1] == Report(2, 2, 3.0, {"loss": 1.0, "extra": 2.0})


def test_a_stop_saves_the_step_just_done_and_waits_for_it() -> None:
    recorder = Recorder()
    rules = Rules(stop_requested=lambda: True)
    with pytest.raises(Interrupted):
        train(*counting(), lambda index: None, 10, checkpointer=recorder, rules=rules)  # type: ignore[arg-type]
    assert recorder.saved == [1]
    assert recorder.waits == 1


def test_a_stop_at_the_last_step_lets_the_run_finish() -> None:
    recorder = Recorder()
    rules = Rules(stop_requested=lambda: True)
    state, _ = train(*counting(), lambda index: None, 1, checkpointer=recorder, rules=rules)  # type: ignore[arg-type]
    assert (int(state.step), recorder.saved) == (1, [1])


def test_processes_stop_and_save_together() -> None:
    """What decides is asked of all at every step, whatever this process would do alone."""
    recorder, asked = Recorder(), []

    def agree(answer: bool) -> bool:
        asked.append(answer)
        return len(asked) == 3  # the second step's question whether to stop

    with pytest.raises(Interrupted, match="stopped at step 2"):
        train(*counting(), lambda index: None, 5, checkpointer=recorder, rules=Rules(agree=agree))  # type: ignore[arg-type]
    assert asked == [False, False, False, True], "the last: nobody goes on before the save is committed"
    assert recorder.saved == [2]


@pytest.mark.parametrize("stopping", [False, True])
def test_a_save_that_fails_fails_the_run(store: Any, stopping: bool) -> None:
    """Training on for hours without a checkpoint would be the silent alternative."""
    store.failing = OSError("the bucket is gone")
    with pytest.raises(OSError, match="the bucket is gone"):
        train(
            *(*counting(), lambda index: None, 3),
            checkpointer=Checkpointer(store),
            rules=Rules(0.0, stop_requested=lambda: stopping),
        )


def test_every_step_is_traced() -> None:
    traced: list[str] = []

    @contextmanager
    def trace(step: int) -> Iterator[None]:
        traced.append(f"enter {step}")
        yield
        traced.append(f"leave {step}")

    train(*counting(), lambda index: traced.append(f"batch {index}"), 2, rules=Rules(traced=trace))
    assert traced == ["enter 1", "batch 0", "leave 1", "enter 2", "batch 1", "leave 2"]


def test_the_loop_costs_less_than_a_millisecond_a_step() -> None:
    steps = 2_000
    started = time.process_time()  # not the clock on the wall: other programs may be at work
    train(*counting(), lambda index: None, steps, guards=[SpikeGuard(12.0, 0.5)])
    assert (time.process_time() - started) / steps < 1e-3
