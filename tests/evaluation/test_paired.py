"""Paired comparison: the exact test against SciPy's, the interval by its own coverage."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from nanocode.evaluation.paired import Paired, paired, paired_figures

COUNTS = st.integers(0, 60)


def table(both: int, wins: int, losses: int, neither: int) -> Paired:
    return Paired(both, neither, tuple(f"w{i}" for i in range(wins)), tuple(f"l{i}" for i in range(losses)))


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (5, 5), (9, 1), (0, 6), (30, 12), (400, 300)])
def test_the_p_value_is_that_of_an_exact_sign_test(wins: int, losses: int) -> None:
    expected = binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert table(3, wins, losses, 4).p_value == pytest.approx(expected)


@given(COUNTS, COUNTS, COUNTS, COUNTS)
def test_the_interval_holds_the_difference_and_mirrors_when_the_models_swap(a: int, b: int, c: int, d: int) -> None:
    ours, theirs = table(a, b, c, d), table(a, c, b, d)
    low, high = ours.interval
    assert low - 1e-12 <= ours.difference <= high + 1e-12
    assert -1 - 1e-12 <= low <= high <= 1 + 1e-12
    assert (-high, -low) == pytest.approx(theirs.interval)
    assert ours.p_value == theirs.p_value


@pytest.mark.parametrize("shares", [(0.5, 0.2, 0.1, 0.2), (0.8, 0.02, 0.08, 0.1), (0.25, 0.25, 0.25, 0.25)])
def test_the_interval_covers_the_true_difference_as_often_as_it_says(shares: tuple[float, ...]) -> None:
    """Every possible outcome of 24 tasks, weighted by how likely it is."""
    n, covered = 24, 0.0
    truth = shares[1] - shares[2]
    for a, b, c in itertools.product(range(n + 1), repeat=3):
        if a + b + c > n:
            continue
        counts = (a, b, c, n - a - b - c)
        ways = math.factorial(n) / math.prod(math.factorial(count) for count in counts)
        low, high = table(*counts).interval
        covered += (low <= truth <= high) * ways * math.prod(s**k for s, k in zip(shares, counts, strict=True))
    assert 0.93 <= covered <= 0.995


def test_pairs_say_more_than_two_separate_intervals() -> None:
    """Both rates lie within each other's interval, and yet 12 tasks were lost and none won."""
    found = table(200, 0, 12, 44)
    assert found.interval[1] < 0
    assert found.p_value < 0.001
    assert str(found).startswith("-4.7 points (") and str(found).endswith("n=256), 0 won, 12 lost, p = 0.00049")


def test_wins_and_losses_are_named() -> None:
    found = paired({"a": True, "b": False, "c": True, "d": False}, {"d": True, "c": True, "b": False, "a": False})
    assert (found.wins, found.losses, found.both, found.neither) == (("d",), ("a",), 1, 1)
    assert found.to_json()["n"] == 4 and found.to_json()["difference"] == 0


def test_no_tasks_say_nothing() -> None:
    assert (paired({}, {}).interval, paired({}, {}).p_value, paired({}, {}).difference) == ((-1.0, 1.0), 1.0, 0.0)


def test_different_tasks_are_not_compared() -> None:
    with pytest.raises(ValueError, match=r"2 tasks were given to one model alone, a among them"):
        paired({"a": True, "c": True}, {"b": True, "c": True})


def test_figures_of_two_evaluations_are_paired_by_decoding_on_the_tasks_of_both() -> None:
    before = {"greedy": {"solved": {"a": True, "b": True, "c": True}}, "sampled": {"solved": {"a": False}}, "bpb": 2.0}
    after = {"greedy": {"solved": {"a": True, "b": False}}, "sampled": {"success": {}}}
    found = paired_figures(before, after)
    assert set(found) == {"greedy"}
    assert (found["greedy"].losses, found["greedy"].difference, found["greedy"].n) == (("b",), -0.5, 2)
    assert paired_figures(before, {"greedy": {"solved": {"z": True}}}) == {}
