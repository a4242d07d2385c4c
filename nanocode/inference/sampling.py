"""How the next token is drawn; kept apart so that naming it does not import JAX."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sampling:
    """`temperature` 0 takes the likeliest token and makes the rest idle. `top_k` 0, `top_p` 1 and `min_p` 0 are off.

    Applied in this order to the tempered distribution: the `top_k` likeliest tokens; of those, the fewest likeliest
    that hold a share of `top_p`; of those, the ones at least `min_p` times as likely as the likeliest (Nguyen et al.,
    2024). Tokens as likely as the last that is kept are kept too. Raises ValueError for a value out of its range.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ValueError(f"temperature must be 0 (greedy) or more, not {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be 0 (off) or more, not {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be above 0 and at most 1 (off), not {self.top_p}")
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p must be between 0 (off) and 1, not {self.min_p}")
        if not 0 <= self.seed < 2**32:
            raise ValueError(f"seed must be a whole number from 0 to {2**32 - 1}, not {self.seed}")
