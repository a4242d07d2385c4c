"""What a person sees while something long runs: one plain line now and then, with rate and time left.

Lines, not a redrawn bar: a stage's output passes through Metaflow, which prefixes and stores each line.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Progress:
    """Says where a loop of `total` units is, at most once every `every_seconds`, and always at the end."""

    def __init__(
        self,
        label: str,
        total: int,
        say: Callable[[str], None],
        *,
        unit: str = "step",
        every_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._total, self._say, self._unit = label, total, say, unit
        self._every_seconds, self._clock = every_seconds, clock
        self._started = self._said_at = clock()
        self._first: int | None = None

    def update(self, done: int, detail: str = "") -> None:
        """`done` units are finished; `detail` goes into the line (loss, rate)."""
        if self._first is None:
            self._first = done - 1
        now = self._clock()
        if done < self._total and now - self._said_at < self._every_seconds:
            return
        self._said_at = now
        rate = (done - self._first) / max(1e-9, now - self._started)
        left = (self._total - done) / rate
        parts = [f"{self._label} {self._unit} {done:,}/{self._total:,}", detail, f"{rate:.2f} {self._unit}s/s"]
        if done < self._total:
            parts.append(f"ETA {clock_time(left)}")
        else:
            parts.append(f"took {clock_time(now - self._started)}")
        self._say(" | ".join(part for part in parts if part))


def clock_time(seconds: float) -> str:
    """Seconds as m:ss or h:mm:ss."""
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02}:{second:02}" if hours else f"{minute}:{second:02}"
