"""pass@k and pass^k: what k tries at a problem are worth, from n samples of which c passed.

pass@k is the chance that at least one of k samples passes, pass^k that all of them do; both are averages over every
choice of k of the n samples and so without bias (pass@k: Chen et al., 2021, "Evaluating large language models trained
on code"; pass^k: Yao et al., 2024, "tau-bench"). Whole-number arithmetic keeps them exact for any n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nanocode.evaluation.intervals import wilson_interval

Estimator = Callable[[int, int, int], float]


def pass_at_k(n: int, c: int, k: int) -> float:
    """1 - C(n-c, k) / C(n, k). Raises ValueError unless 0 <= c <= n and 1 <= k <= n."""
    _check(n, c, k)
    choices = math.comb(n, k)
    return (choices - math.comb(n - c, k)) / choices


def pass_hat_k(n: int, c: int, k: int) -> float:
    """pass^k = C(c, k) / C(n, k). Raises ValueError as `pass_at_k`."""
    _check(n, c, k)
    return math.comb(c, k) / math.comb(n, k)


@dataclass(frozen=True)
class Score:
    """The mean over n problems of a value between 0 and 1, with a 95 % interval for problems like these.

    The interval is Wilson's with the mean in the place of the share. A value between 0 and 1 with mean m varies at most
    as a coin of chance m does, so it is never too narrow, and with one sample a problem it is Wilson's itself. A
    bootstrap over problems would be narrower, but shrinks to a point where no problem is solved, or every one: the very
    figures that small models have.
    """

    value: float
    n: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson_interval(self.value, self.n)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {"rate": self.value, "n": self.n, "low": low, "high": high}


def mean_over_problems(estimator: Estimator, samples: int, passed: Sequence[int], k: int) -> Score:
    """`estimator` averaged over problems; `passed` says how many of its `samples` each problem has solved."""
    if not passed:
        raise ValueError("there is no problem to average over")
    return Score(math.fsum(estimator(samples, each, k) for each in passed) / len(passed), len(passed))


def _check(n: int, c: int, k: int) -> None:
    if not 0 <= c <= n:
        raise ValueError(f"{c} of {n} samples cannot have passed")
    if not 1 <= k <= n:
        raise ValueError(f"k must be from 1 to the number of samples, {n}, not {k}")
