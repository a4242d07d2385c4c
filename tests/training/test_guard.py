"""What counts as a fault, and what does not."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.training.guard import FiniteGuard, RunningMean, SpikeGuard, suspects
from nanocode.training.journal import Journal, Report, Return

DEFAULTS = (12.0, 0.5)


def report(step: int, loss: float, **named: float) -> Report:
    return Report(step, 1_000, 0.1, {"loss": loss, **named})


def faults(losses: Sequence[float], guard: SpikeGuard | None = None) -> list[int]:
    guard = guard or SpikeGuard(*DEFAULTS)
    return [index for index, loss in enumerate(losses) if guard.judge(report(index + 1, loss)) is not None]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_every_value_must_be_a_number(value: float) -> None:
    assert FiniteGuard().judge(report(3, 1.0, margin=value)) == f"margin became {value}"
    assert FiniteGuard().judge(report(3, 1.0, margin=2.0)) is None


def test_a_mean_is_right_from_its_first_value_on() -> None:
    """karpathy/nanochat's SFT divides by one weight too few and logs about half the loss at step 0."""
    mean = RunningMean(0.9)
    assert mean.add(8.0) == pytest.approx(8.0)
    assert mean.add(8.0) == pytest.approx(8.0)
    assert mean.add(4.0) == pytest.approx((0.81 * 8 + 0.9 * 8 + 4.0) / (0.81 + 0.9 + 1.0))


@given(
    seed=st.integers(0, 2**32 - 1),
    start=st.floats(0.5, 11.0),
    end=st.floats(0.05, 4.0),
    spread=st.floats(0.0, 0.5),
    tails=st.sampled_from(["normal", "laplace"]),
    steps=st.integers(21, 400),
)
def test_ordinary_noise_is_no_fault(seed: int, start: float, end: float, spread: float, tails: str, steps: int) -> None:
    rng = np.random.default_rng(seed)
    course = end + (start - end) * np.exp(-np.arange(steps) / 60)
    noise = rng.normal(0, spread, steps) if tails == "normal" else rng.laplace(0, spread / math.sqrt(2), steps)
    assert faults(course + noise) == []


@pytest.mark.parametrize("losses", [[6.2, 9.3, 8.4], [9.0, 9.05, 9.14, *[9.1] * 20], [2.0] * 300])
def test_the_start_and_a_plain_are_no_faults(losses: list[float]) -> None:
    """A badly warmed start goes up before it comes down; a constant loss deviates by nothing."""
    assert faults(losses) == []


@given(seed=st.integers(0, 2**32 - 1), at=st.integers(60, 140), jump=st.floats(2.0, 8.0))
def test_a_jump_is_a_fault_at_once(seed: int, at: int, jump: float) -> None:
    losses = 3.0 + np.random.default_rng(seed).normal(0, 0.05, 150)
    losses[at] += jump
    assert faults(losses) == [at]


def test_a_loss_that_climbs_away_is_found_before_it_doubles() -> None:
    losses = [3.0 + 0.02 * math.sin(step) for step in range(100)] + [3.0 + 0.25 * step for step in range(1, 20)]
    first = faults(losses)[0]
    assert losses[first] < 6.0


def test_a_small_jump_of_a_quiet_loss_is_no_fault() -> None:
    assert faults([*[0.05] * 60, 0.4, *[0.05] * 10]) == []


def test_the_fault_is_said_in_figures() -> None:
    guard = SpikeGuard(*DEFAULTS)
    guard.begin([report(step, 2.0) for step in range(1, 40)])
    assert guard.judge(report(40, 9.5)) == "loss jumped from about 2.000 to 9.500"


@given(losses=st.lists(st.floats(0.1, 9.0), min_size=30, max_size=80), cut=st.integers(0, 80))
def test_shown_its_history_again_a_guard_judges_as_before(losses: list[float], cut: int) -> None:
    straight = SpikeGuard(2.0, 0.1)
    kept: list[Report] = []
    verdicts = []
    for step, loss in enumerate(losses, start=1):
        verdicts.append(straight.judge(report(step, loss)))
        if verdicts[-1] is None:
            kept.append(report(step, loss))
    resumed = SpikeGuard(2.0, 0.1)
    resumed.judge(report(1, 100.0))
    before = [each for each in kept if each.step <= cut]
    resumed.begin(before)
    assert [resumed.judge(report(step, loss)) for step, loss in enumerate(losses, 1) if step > cut] == verdicts[cut:]


def test_the_batches_under_suspicion() -> None:
    journal = Journal(100)
    assert suspects(journal) == (0, (0,)), "at the very first step there is none before"
    for step in range(1, 11):
        journal.add(report(step, 1.0))
    assert suspects(journal) == (9, (9, 10))
    journal.returns.append(Return(11, "", (9, 10)))
    assert suspects(journal) == (8, (8, 11, 12, 13)), "skipped ones are skipped already, two steps either way"
