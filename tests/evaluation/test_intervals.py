from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.evaluation.intervals import Rate, SampleMean

RATES = st.integers(0, 500).flatmap(lambda n: st.builds(Rate, st.integers(0, n), st.just(n)))


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [
        (89, 96, 0.857, 0.964),
        (0, 96, 0.0, 0.038),
        (96, 96, 0.962, 1.0),
        (48, 96, 0.402, 0.598),
        (240, 256, 0.901, 0.961),
    ],
)
def test_the_interval_is_wilsons(hits: int, n: int, low: float, high: float) -> None:
    assert Rate(hits, n).interval == pytest.approx((low, high), abs=5e-4)


@given(rate=RATES)
def test_the_interval_holds_the_value_and_stays_between_0_and_1(rate: Rate) -> None:
    low, high = rate.interval
    rounding = 1e-12
    assert 0 <= low <= rate.value + rounding
    assert rate.value - rounding <= high <= 1


@given(rate=RATES)
def test_the_interval_of_misses_mirrors_that_of_hits(rate: Rate) -> None:
    low, high = Rate(rate.n - rate.hits, rate.n).interval
    assert (1 - high, 1 - low) == pytest.approx(rate.interval)


def test_more_of_the_same_narrows_the_interval() -> None:
    widths = [Rate(n // 2, n).interval[1] - Rate(n // 2, n).interval[0] for n in (4, 16, 64, 256)]
    assert widths == sorted(widths, reverse=True)


def test_nothing_measured_says_nothing() -> None:
    assert (Rate(0, 0).value, Rate(0, 0).interval) == (0.0, (0.0, 1.0))


@pytest.mark.parametrize(("hits", "n"), [(1, 0), (-1, 3), (4, 3), (0, -1)])
def test_what_is_no_rate_is_refused(hits: int, n: int) -> None:
    with pytest.raises(ValueError, match=f"{hits} of {n} is not a rate"):
        Rate(hits, n)


def test_a_rate_is_always_shown_with_its_n() -> None:
    assert str(Rate(89, 96)) == "0.927 (0.857..0.964, n=96)"
    shown = Rate(3, 4).to_json()
    assert (shown["rate"], shown["hits"], shown["n"]) == (0.75, 3, 4)
    assert (shown["low"], shown["high"]) == Rate(3, 4).interval


@pytest.mark.parametrize("n", range(1, 300, 7))
def test_the_interval_reaches_the_ends_exactly(n: int) -> None:
    assert Rate(0, n).interval[0] == 0.0
    assert Rate(n, n).interval[1] == 1.0


def test_a_mean_has_the_interval_of_its_standard_error() -> None:
    found = SampleMean.of([1.0, 2.0, 3.0, 4.0])
    assert (found.value, found.n) == (2.5, 4)
    assert found.interval == pytest.approx((2.5 - 1.96 * 0.6455, 2.5 + 1.96 * 0.6455), abs=1e-3)


@pytest.mark.parametrize(("values", "mean"), [([], 0.0), ([3.0], 3.0)])
def test_a_mean_of_less_than_two_values_has_no_interval(values: list[float], mean: float) -> None:
    assert SampleMean.of(values).to_json() == {"mean": mean, "n": len(values), "low": None, "high": None}
