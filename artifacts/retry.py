"""Patience with a server: a bounded number of attempts with pauses between them.

The pauses are drawn from the whole of a range that doubles ("full jitter"), so that the many clients whom an overload
turned away do not come back together (M. Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015).
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Patience:
    """How often something is tried, and how long the pauses may be: about 8 s in all, 16 s at most.

    `draw(low, high)` gives a random number between the two.
    """

    attempts: int = 7
    first_seconds: float = 0.25
    longest_seconds: float = 10.0
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[float, float], float] = random.uniform

    def run(self, call: Callable[[], _Result], transient: Callable[[Exception], bool]) -> _Result:
        """What `call` returns. An exception that is not `transient`, or the last one, passes through."""
        for failures in range(self.attempts):
            try:
                return call()
            except Exception as error:
                if failures + 1 == self.attempts or not transient(error):
                    raise
            self.sleep(self.draw(0.0, min(self.longest_seconds, self.first_seconds * 2**failures)))
        raise AssertionError("at least one attempt")
