from __future__ import annotations

import jax
import numpy as np
import pytest

from nanocode.training.schedule import half_cosine, momentum_ramp, trapezoid


def table(factor: object, steps: range | list[int]) -> list[float]:
    return [float(factor(np.int32(step))) for step in steps]  # type: ignore[operator]


def test_warm_up_plateau_and_warm_down() -> None:
    """100 steps, 10 of warm-up, the last 40 % down to a tenth."""
    factor = trapezoid(100, 10, 0.4, 0.1)
    steps = [0, 4, 8, 9, 10, 35, 60, 61, 80, 99, 100]
    expected = [0.1, 0.5, 0.9, 1, 1, 1, 1, 0.9775, 0.55, 0.1225, 0.1]
    assert table(factor, steps) == pytest.approx(expected, abs=1e-6)


def test_the_schedule_of_nanochat() -> None:
    """(it+1)/40 for 40 steps; 1 while it <= n - w, w = round(0.65 n); then p + (1-p) * 0.05 with p = (n-it)/w."""
    steps, warmdown = 2_520, 1_638
    expected = []
    for it in range(steps):
        p = (steps - it) / warmdown
        expected.append((it + 1) / 40 if it < 40 else 1.0 if it <= steps - warmdown else p + (1 - p) * 0.05)
    factor = jax.vmap(trapezoid(steps, 40, 0.65, 0.05))
    np.testing.assert_allclose(factor(np.arange(steps)), expected, atol=1e-6)


def test_without_warm_up_the_first_step_has_the_full_rate() -> None:
    assert table(trapezoid(10, 0, 0.4, 0.0), range(10)) == pytest.approx([1] * 7 + [0.75, 0.5, 0.25])


def test_without_warm_down_the_last_step_has_the_full_rate() -> None:
    assert table(trapezoid(10, 0, 0.0, 0.0), range(10)) == [1.0] * 10


def test_warm_down_over_the_whole_run_starts_at_once() -> None:
    assert table(trapezoid(4, 0, 1.0, 0.0), range(5)) == pytest.approx([1, 0.75, 0.5, 0.25, 0])


def test_no_step_of_a_run_is_wasted_on_a_rate_of_zero() -> None:
    assert min(table(trapezoid(7, 3, 0.5, 0.0), range(7))) > 0


def test_a_warm_up_longer_than_the_run_never_exceeds_either_slope() -> None:
    values = table(trapezoid(10, 40, 0.5, 0.0), range(10))
    assert values == pytest.approx([min((step + 1) / 40, (10 - step) / 5, 1) for step in range(10)])


def test_the_rate_stays_at_the_end_value_past_the_end() -> None:
    assert table(trapezoid(10, 0, 0.5, 0.0), [10, 11, 50]) == [0.0, 0.0, 0.0]


def test_the_momentum_of_nanochat() -> None:
    """0.85 -> 0.97 over 400 steps; 0.97 -> 0.90 over the last w = round(0.65 n); the first branch wins."""
    for steps in (300, 900, 2_520):
        warmdown, expected = round(0.65 * steps), []
        for it in range(steps):
            falling = 0.97 + (0.90 - 0.97) * (it - (steps - warmdown)) / warmdown
            later = falling if it >= steps - warmdown else 0.97
            expected.append(0.85 + (0.97 - 0.85) * it / 400 if it < 400 else later)
        momentum = jax.vmap(momentum_ramp(steps, 0.85, 0.97, 0.90, 400, 0.65))
        np.testing.assert_allclose(momentum(np.arange(steps)), expected, atol=1e-6)


def test_the_momentum_of_nanocode() -> None:
    """0.85 -> 0.95 over 300 steps, then constant."""
    momentum = momentum_ramp(1_000, 0.85, 0.95, 0.95, 300, 0.4)
    assert table(momentum, [0, 150, 299, 300, 700, 999]) == pytest.approx([0.85, 0.9, 0.949667, 0.95, 0.95, 0.95])


def test_a_momentum_that_never_changes_is_a_plain_number() -> None:
    """Then what is computed from it, 1 - momentum, is not rounded on the way."""
    assert momentum_ramp(10, 0.95, 0.95, 0.95, 4, 0.5)(np.int32(3)) == 0.95


def test_a_momentum_without_warm_up_starts_at_its_peak() -> None:
    assert table(momentum_ramp(10, 0.5, 0.9, 0.8, 0, 0.5), [0, 5, 10]) == pytest.approx([0.9, 0.9, 0.8])


def test_a_momentum_without_warm_down_stays_at_its_peak() -> None:
    assert table(momentum_ramp(10, 0.5, 0.9, 0.8, 2, 0.0), [0, 1, 2, 9]) == pytest.approx([0.5, 0.7, 0.9, 0.9])


def test_decay_falls_as_half_a_cosine() -> None:
    assert table(half_cosine(8), [0, 2, 4, 6, 8]) == pytest.approx([1, (1 + 0.5**0.5) / 2, 0.5, (1 - 0.5**0.5) / 2, 0])
