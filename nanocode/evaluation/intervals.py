"""Rates with their uncertainty: every rate is reported with n and a 95 % Wilson interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
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
        """95 % score interval (Wilson, 1927)."""
        if self.n == 0:
            return 0.0, 1.0
        p, z2 = self.value, _Z_95**2
        centre = (p + z2 / (2 * self.n)) / (1 + z2 / self.n)
        half = _Z_95 / (1 + z2 / self.n) * math.sqrt(p * (1 - p) / self.n + z2 / (4 * self.n**2))
        # At the ends the interval reaches them exactly; rounding must not say otherwise.
        return 0.0 if self.hits == 0 else centre - half, 1.0 if self.hits == self.n else centre + half

    def to_json(self) -> dict[str, Any]:
        low, high = self.interval
        return {"rate": self.value, "hits": self.hits, "n": self.n, "low": low, "high": high}

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.value:.3f} ({low:.3f}..{high:.3f}, n={self.n})"
