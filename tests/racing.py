"""Threads that start at one moment, and those of them that won."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Racer = TypeVar("Racer")


def race(racers: Sequence[Racer], attempt: Callable[[Racer], bool]) -> list[Racer]:
    """Those whose `attempt`, each in a thread of its own, gave True. Raises what an attempt raises."""
    start = threading.Barrier(len(racers))

    def run(racer: Racer) -> bool:
        start.wait()
        return attempt(racer)

    with ThreadPoolExecutor(len(racers)) as pool:
        return [racer for racer, won in zip(racers, pool.map(run, racers), strict=True) if won]
