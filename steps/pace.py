"""How often a stage saves its progress, when saving itself takes time: it hashes all that is there so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SAVE_SHARE = 0.1  # at most this share of the time goes into saving


class Pace:
    """Saves are due every so many seconds, and less often where the last one took long."""

    def __init__(self, every_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._every_seconds, self._clock = every_seconds, clock
        self._saved_at, self._save_seconds = clock(), 0.0

    @property
    def is_due(self) -> bool:
        return self._clock() - self._saved_at >= max(self._every_seconds, self._save_seconds / SAVE_SHARE)

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Around a save, due or not."""
        started = self._clock()
        yield
        self._saved_at = self._clock()
        self._save_seconds = self._saved_at - started
