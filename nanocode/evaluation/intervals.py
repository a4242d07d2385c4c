"""Rates and means with their uncertainty: each is reported with n and a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

_Z_95 = 1.959963984540054


@dataclass(frozen=True)
class Rate:
    """`hits` of `n`. The value of 0 of 0 is 0, its interval all of 0..1."""

    hits: int
    n: int

    def __post_init__(self) -> None:
        if not 0 <= self.hits <= self.n:
            raise ValueError(f"{self.hits} of {self.n} is not a rate")

    @property
    def value(self) -> float:
        return self.hits / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """95 % by `wilson_interval`."""
        return wilson_interval(self.value, self.n)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {"rate": self.value, "hits": self.hits, "n": self.n, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.3f} ({low:.3f}..{high:.3f}, n={self.n})"


def wilson_interval(share: float, n: int) -> tuple[float, float]:
    """95 % score interval (Wilson, 1927) of a share between 0 and 1 that was seen in `n` trials; 0..1 for none."""
    if n == 0:
        return 0.0, 1.0
    z2 = _Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n**2))
    # At the ends the interval reaches them exactly; rounding must not say otherwise.
    return 0.0 if share == 0 else centre - half, 1.0 if share == 1 else centre + half


@dataclass(frozen=True)
class SampleMean:
    """The mean of `n` values and the standard error of it; with fewer than two values the error is not known."""

    value: float
    n: int
    error: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> SampleMean:
        """Of independent values, such as one a task. The mean of none is 0."""
        if len(values) < 2:
            return cls(float(sum(values)), len(values), None)
        return cls(fmean(values), len(values), stdev(values) / math.sqrt(len(values)))

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % by the normal approximation, which small n makes too narrow; None where the error is not known."""
        return None if self.error is None else (self.value - _Z_95 * self.error, self.value + _Z_95 * self.error)

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval or (None, None)
        return {"mean": self.value, "n": self.n, "low": low, "high": high}
