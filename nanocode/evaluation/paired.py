"""Two models on the same tasks: what one solves and the other does not, where two separate intervals say too little.

The test is McNemar's in its exact form (a sign test on the tasks where the two differ); the interval of the difference
is Newcombe's hybrid score interval for paired proportions (Statistics in Medicine 17, 1998, method 10).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nanocode.evaluation.intervals import Rate

DECODINGS = ("greedy", "sampled")


@dataclass(frozen=True)
class Paired:
    """A second model against a first one: `wins` are the tasks that only the second solves, `losses` those that only
    the first does; `both` and `neither` are counts.
    """

    both: int
    neither: int
    wins: tuple[str, ...]
    losses: tuple[str, ...]

    @property
    def n(self) -> int:
        """Tasks that both worked on."""
        return self.both + self.neither + len(self.wins) + len(self.losses)

    @property
    def difference(self) -> float:
        """The second's rate minus the first's."""
        return (len(self.wins) - len(self.losses)) / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % of the difference; all of -1..1 without tasks."""
        return _newcombe(self.both, len(self.wins), len(self.losses), self.neither)

    @property
    def p_value(self) -> float:
        """Two-sided, exact: how likely so uneven a split of the differing tasks is if both models were as good."""
        return _sign_test(len(self.wins), len(self.losses))

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {
            "n": self.n,
            "difference": self.difference,
            "low": low,
            "high": high,
            "p_value": self.p_value,
            "both": self.both,
            "neither": self.neither,
            "wins": list(self.wins),
            "losses": list(self.losses),
        }

    def __str__(self) -> str:
        return one_line(self.to_json())


def one_line(pair: Mapping[str, Any]) -> str:
    """A comparison in its JSON form as words: points, interval, n, and what became of single tasks."""
    points, low, high = (100 * pair[key] for key in ("difference", "low", "high"))
    return (
        f"{points:+.1f} points ({low:+.1f}..{high:+.1f}, n={pair['n']}), "
        f"{len(pair['wins'])} won, {len(pair['losses'])} lost, p = {pair['p_value']:.2g}"
    )


def paired(first: Mapping[str, bool], second: Mapping[str, bool]) -> Paired:
    """By task, whether each model solved it. Raises ValueError unless both worked on the same tasks."""
    if alone := sorted(set(first) ^ set(second)):
        raise ValueError(
            f"{len(alone)} tasks were given to one model alone, {alone[0]} among them: compare like with like"
        )
    return Paired(
        both=sum(solved and second[task] for task, solved in first.items()),
        neither=sum(not solved and not second[task] for task, solved in first.items()),
        wins=tuple(sorted(task for task, solved in second.items() if solved and not first[task])),
        losses=tuple(sorted(task for task, solved in first.items() if solved and not second[task])),
    )


def paired_figures(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Paired]:
    """By decoding, the figures of two evaluations task by task, on the tasks that both were given.

    Nothing for a decoding that one of them lacks, for figures that do not say which tasks were solved, and for tasks
    that have none in common.
    """
    found = {}
    for decoding in DECODINGS:
        one, other = (figures.get(decoding, {}).get("solved", {}) for figures in (first, second))
        if common := set(one) & set(other):
            found[decoding] = paired({task: one[task] for task in common}, {task: other[task] for task in common})
    return found


def _sign_test(wins: int, losses: int) -> float:
    differing = wins + losses
    tail = sum(math.comb(differing, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2 * tail / 2**differing)


def _newcombe(both: int, second_only: int, first_only: int, neither: int) -> tuple[float, float]:
    n = both + second_only + first_only + neither
    if not n:
        return -1.0, 1.0
    second, first = Rate(both + second_only, n), Rate(both + first_only, n)
    (second_low, second_high), (first_low, first_high) = second.interval, first.interval
    phi = _correlation(both, second_only, first_only, neither)
    difference = second.value - first.value
    down = _hypotenuse(second.value - second_low, first_high - first.value, phi)
    up = _hypotenuse(second_high - second.value, first.value - first_low, phi)
    return difference - down, difference + up


def _correlation(both: int, second_only: int, first_only: int, neither: int) -> float:
    """Phi of the two-by-two table, with Newcombe's correction for continuity where it is positive."""
    n = both + second_only + first_only + neither
    margins = (both + second_only) * (first_only + neither) * (both + first_only) * (second_only + neither)
    if not margins:
        return 0.0
    product = both * neither - second_only * first_only
    return (max(product - n / 2, 0.0) if product > 0 else product) / math.sqrt(margins)


def _hypotenuse(one: float, other: float, phi: float) -> float:
    return math.sqrt(max(one**2 - 2 * phi * one * other + other**2, 0.0))
