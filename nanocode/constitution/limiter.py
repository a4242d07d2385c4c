"""How many requests an endpoint gets at once: more while it copes, fewer when it says that it is too much.

Additive increase, multiplicative decrease, as TCP does (Jacobson, "Congestion avoidance and control", 1988): before the
first complaint each success adds one, so that the limit doubles with every round; after it, every round of answers adds
one (or every `SUCCESSES_PER_STEP` answers, if those are fewer), and from the limit at which the endpoint complained
last, ten rounds. A complaint takes a quarter off. Requests that were under way when the limit was cut complain about
the old limit: they do not cut it again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

FIRST_LIMIT = 16
SUCCESSES_PER_STEP = 25
SLOWER_BEYOND_CEILING = 10
CUT = 0.75
SPREAD_SECONDS = 0.5


@dataclass(frozen=True)
class Permit:
    """Leave to send one request. ``epoch``: how often the limit had been cut when it was given."""

    epoch: int


class Limiter:
    """One endpoint's requests in flight, never more than `most`; used from one event loop.

    `clock` (seconds), `sleep` and `rng` are arguments so that tests need not wait. An endpoint that never complains and
    a `most` up to `FIRST_LIMIT` cost two additions a request.
    """

    def __init__(
        self,
        most: int,
        rng: random.Random,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Raises ValueError unless `most` is positive."""
        if most < 1:
            raise ValueError(f"an endpoint needs at least one request at a time, not {most}")
        self._most, self._rng, self._clock, self._sleep = most, rng, clock, sleep
        self.limit = min(FIRST_LIMIT, most)
        self.in_flight = 0
        self.cuts = 0
        self._ceiling: int | None = None
        self._successes = 0
        self._held_until = -float("inf")
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def acquire(self) -> Permit:
        """Wait for a place, first come, first served, and for the end of a pause that the endpoint asked for."""
        if self._waiting or self.in_flight >= self.limit:
            await self._place()
        else:
            self.in_flight += 1
        try:
            while (pause := self._held_until - self._clock()) > 0:
                await self._sleep(pause + self._rng.uniform(0, SPREAD_SECONDS))
        except asyncio.CancelledError:
            self.release()
            raise
        return Permit(self.cuts)

    def release(self) -> None:
        """The request is over, however it ended."""
        self.in_flight -= 1
        self._wake()

    def succeeded(self) -> None:
        """An answer came."""
        if self.limit >= self._most:
            return
        self._successes += 1
        if self._successes >= self._successes_wanted():
            self._successes = 0
            self.limit += 1
            self._wake()

    def complained(self, permit: Permit, retry_after: float | None = None) -> None:
        """The endpoint said that it is too much (429, 503 or the like); for `retry_after` seconds nobody asks it."""
        if retry_after is not None:
            self._held_until = max(self._held_until, self._clock() + retry_after)
        if permit.epoch < self.cuts:
            return
        self.cuts += 1
        self._ceiling = self.limit
        self._successes = 0
        self.limit = max(1, int(self.limit * CUT))

    def _successes_wanted(self) -> int:
        if self._ceiling is None:
            return 1
        round_trip = min(self.limit, SUCCESSES_PER_STEP)
        return round_trip * (1 if self.limit < self._ceiling - 1 else SLOWER_BEYOND_CEILING)

    async def _place(self) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.release()
            raise

    def _wake(self) -> None:
        """Give free places to those who wait; a place counts from here on, so that no newcomer can take it."""
        while self._waiting and self.in_flight < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self.in_flight += 1
                turn.set_result(None)
