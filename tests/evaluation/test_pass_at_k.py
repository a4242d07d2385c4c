from __future__ import annotations

import json
import random
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.pass_at_k import Score, mean_over_problems, pass_at_k, pass_hat_k


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"),
    [
        (5, 1, 1, 0.2),
        (5, 1, 5, 1.0),
        (5, 2, 3, 0.9),
        (10, 3, 5, 0.916667),
        (200, 1, 1, 0.005),
        (200, 1, 100, 0.5),
        (1, 0, 1, 0.0),
    ],
)
def test_published_values_of_pass_at_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_at_k(n, c, k) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("n", "c", "k", "expected"), [(5, 2, 1, 0.4), (5, 3, 2, 0.3), (10, 8, 3, 0.466667), (10, 5, 5, 0.003968)]
)
def test_published_values_of_pass_hat_k(n: int, c: int, k: int, expected: float) -> None:
    assert pass_hat_k(n, c, k) == pytest.approx(expected, abs=1e-6)


@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n), st.integers(1, n))))
def test_both_are_the_average_over_every_choice_of_k_samples(case: tuple[int, int, int]) -> None:
    n, c, k = case
    choices = list(combinations([1] * c + [0] * (n - c), k))
    assert pass_at_k(n, c, k) == float(Fraction(sum(any(choice) for choice in choices), len(choices)))
    assert pass_hat_k(n, c, k) == float(Fraction(sum(all(choice) for choice in choices), len(choices)))


def test_with_one_try_both_are_the_share_that_passed() -> None:
    for passed in range(201):
        assert pass_at_k(200, passed, 1) == pass_hat_k(200, passed, 1) == passed / 200


def test_hundreds_of_samples_lose_no_digit() -> None:
    """The product of the paper's code, in fractions."""
    for c, k in [(1, 100), (3, 7), (100, 100), (199, 1), (200, 200), (0, 50)]:
        product = Fraction(1)
        for i in range(200 - c + 1, 201):
            product *= 1 - Fraction(k, i)
        assert pass_at_k(200, c, k) == float(1 - max(product, 0))


@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k])
@pytest.mark.parametrize(
    ("n", "c", "k"), [(4, 0, 5), (4, 4, 5), (0, 0, 1), (4, 2, 0), (4, 2, -1), (4, 5, 1), (4, -1, 1)]
)
def test_fewer_samples_than_tries_are_an_error_and_no_figure(function, n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match="samples"):
        function(n, c, k)


def test_the_mean_is_over_problems() -> None:
    score = mean_over_problems(pass_at_k, 4, [0, 4, 2, 1], 2)
    assert score.value == pytest.approx((0 + 1 + (1 - 1 / 6) + (1 - 3 / 6)) / 4)
    assert score.n == 4
    with pytest.raises(ValueError, match="no problem"):
        mean_over_problems(pass_at_k, 1, [], 1)


def test_one_sample_a_problem_has_wilsons_interval() -> None:
    score = mean_over_problems(pass_at_k, 1, [1] * 89 + [0] * 7, 1)
    assert score.interval == pytest.approx(Rate(89, 96).interval)
    assert score.interval == pytest.approx((0.857, 0.964), abs=1e-3)


@pytest.mark.parametrize("solved", [0, 1])
def test_the_interval_of_none_and_of_all_is_not_a_point(solved: int) -> None:
    low, high = mean_over_problems(pass_at_k, 5, [5 * solved] * 164, 1).interval
    assert high - low == pytest.approx(0.0229, abs=1e-4)
    assert solved in (low, high)


def test_the_interval_holds_the_truth_at_least_as_often_as_it_says() -> None:
    """Problems of every difficulty, five samples each: 95 % of intervals must hold the true mean, or more."""
    rng = random.Random(0)
    held = 0
    for _ in range(400):
        passed = [sum(rng.random() < chance for _ in range(5)) for chance in (rng.random() ** 2 for _ in range(100))]
        low, high = mean_over_problems(pass_at_k, 5, passed, 1).interval
        held += low <= 1 / 3 <= high
    assert held >= 380


def test_a_score_is_plain_json() -> None:
    shown = Score(0.5, 8).to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert set(shown) == {"rate", "n", "low", "high"}
