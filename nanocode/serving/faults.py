"""Faults on purpose: what real endpoints do to their clients, at a seeded rate, with a bill of what was delivered.

An ASGI wrapper around the teacher. Whether and how an attempt fails follows from the seed, the request's bytes and how
often it was asked before, so that the order in which requests arrive changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

FAULTS = ("429", "500", "error-in-200", "null", "timeout", "torn", "slow", "reset")
BILL_PATH = "/v1/_bill"
COMPLETIONS_PATH = "/v1/chat/completions"
_SLOW_CHUNKS = 10
# The server has to notice that the connection is gone, lest it misses an answer.
_UNTIL_CUT_SECONDS = 0.01

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Reset = Callable[[Any], None]


@dataclass(frozen=True)
class Behaviour:
    """How an endpoint treats its clients; the default is instant and without fault.

    ``fault_rate``: share of attempts that meet one of `faults`. ``hang_seconds``: how long a "timeout" keeps its client
    waiting. ``slow_seconds``: how long a "slow" answer takes to arrive, whole in the end. Limits are per second, over
    the last second; beyond them comes 429 with Retry-After.
    """

    fault_rate: float = 0.0
    faults: tuple[str, ...] = FAULTS
    seed: int = 0
    latency_seconds: float = 0.0
    hang_seconds: float = 60.0
    slow_seconds: float = 2.0
    retry_after_seconds: float = 1.0
    requests_per_second: float | None = None
    tokens_per_second: float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a fault that does not exist."""
        unknown = [name for name in self.faults if name not in FAULTS]
        if unknown:
            raise ValueError(f"there is no fault {unknown[0]!r}: choose from {', '.join(FAULTS)}")

    def fault(self, digest: str, attempt: int) -> str | None:
        """What happens to an attempt (counted from 0) at the request with that digest; None: nothing."""
        drawn = hashlib.sha256(f"{self.seed}/{digest}/{attempt}".encode()).digest()
        if int.from_bytes(drawn[:8], "big") >= self.fault_rate * 2**64:
            return None
        return self.faults[int.from_bytes(drawn[8:12], "big") % len(self.faults)]


class Bill:
    """What was asked and what was delivered, by request key (the Idempotency-Key header, else the body's digest).

    ``delivered``: a whole answer was handed to the network. ``lost``: the work was done, as far as a server that bills
    is concerned, and the client could not get the answer (time-out, reset, torn). ``refused``: an error, not billed.
    """

    def __init__(self) -> None:
        self.requests: dict[str, dict[str, int]] = {}

    def add(self, key: str, kind: str) -> None:
        """Count one attempt."""
        counts = self.requests.setdefault(key, {"delivered": 0, "lost": 0, "refused": 0})
        counts[kind] += 1

    def attempts(self, key: str) -> int:
        """Attempts at `key` so far."""
        return sum(self.requests.get(key, {}).values())

    def to_json(self) -> dict[str, Any]:
        """Totals and the counts of each request."""
        kinds = ("delivered", "lost", "refused")
        totals = {kind: sum(counts[kind] for counts in self.requests.values()) for kind in kinds}
        return totals | {"requests": self.requests}


class RateLimit:
    """A window of one second over requests and over tokens; `clock` is an argument so that tests need not wait."""

    def __init__(
        self, requests: float | None, tokens: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._requests, self._tokens, self._clock = requests, tokens, clock
        self._recent: deque[tuple[float, int]] = deque()

    def admits(self, tokens: int) -> bool:
        """Whether one more request of about that many tokens is within the limits; if so it counts."""
        now = self._clock()
        while self._recent and self._recent[0][0] <= now - 1:
            self._recent.popleft()
        if self._requests is not None and len(self._recent) + 1 > self._requests:
            return False
        used = sum(count for _, count in self._recent)
        if self._tokens is not None and self._recent and used + tokens > self._tokens:
            return False
        self._recent.append((now, tokens))
        return True


class Unreliable:
    """The ASGI application `app` with the `behaviour` of a real endpoint. `reset` cuts a client's connection."""

    def __init__(self, app: App, behaviour: Behaviour, reset: Reset, bill: Bill | None = None) -> None:
        self._app, self._behaviour, self._reset = app, behaviour, reset
        self.bill = bill or Bill()
        self._limit = RateLimit(behaviour.requests_per_second, behaviour.tokens_per_second)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and scope["path"] == BILL_PATH:
            await _reply(send, 200, json.dumps(self.bill.to_json()).encode())
        elif scope["type"] == "http" and scope["path"] == COMPLETIONS_PATH:
            await self._complete(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _complete(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = await _whole(receive)
        digest = hashlib.sha256(body).hexdigest()
        key = dict(scope["headers"]).get(b"idempotency-key", digest.encode()).decode("latin-1")
        if not self._limit.admits(len(body.split())):
            self.bill.add(key, "refused")
            await self._refuse(send, 429, "rate limit reached")
            return
        fault = self._behaviour.fault(digest, self.bill.attempts(key))
        if self._behaviour.latency_seconds:
            await asyncio.sleep(self._behaviour.latency_seconds)
        if fault in ("429", "500", "error-in-200"):
            self.bill.add(key, "refused")
            await self._refuse(send, 200 if fault == "error-in-200" else int(fault), f"injected: {fault}")
            return
        status, headers, content = await self._answer(scope, body)
        if status != 200:
            self.bill.add(key, "refused")
            await _reply(send, status, content, headers)
            return
        self.bill.add(key, "delivered" if fault in (None, "slow") else "lost")
        await self._deliver(fault, scope, send, headers, content)

    async def _refuse(self, send: Send, status: int, message: str) -> None:
        error: dict[str, Any] = {"message": message, "type": "injected", "code": 429 if status == 200 else status}
        body: dict[str, Any] = {"error": error} | ({"choices": None} if status == 200 else {})
        headers = [(b"content-type", b"application/json")]
        if status == 429:
            headers.append((b"retry-after", f"{self._behaviour.retry_after_seconds:g}".encode()))
        await _reply(send, status, json.dumps(body).encode(), headers)

    async def _deliver(
        self, fault: str | None, scope: Scope, send: Send, headers: list[tuple[bytes, bytes]], content: bytes
    ) -> None:
        if fault == "timeout":
            await asyncio.sleep(self._behaviour.hang_seconds)
        if fault in ("reset", "timeout"):
            self._reset(scope["client"])
            await asyncio.sleep(_UNTIL_CUT_SECONDS)
        elif fault == "null":
            await _reply(send, 200, _without_content(content))
        elif fault == "torn":
            await _reply(send, 200, content[: len(content) // 2], headers)
        elif fault == "slow":
            await self._drip(send, headers, content)
        else:
            await _reply(send, 200, content, headers)

    async def _drip(self, send: Send, headers: list[tuple[bytes, bytes]], content: bytes) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        size = -(-len(content) // _SLOW_CHUNKS)
        for start in range(0, len(content), size):
            await asyncio.sleep(self._behaviour.slow_seconds / _SLOW_CHUNKS)
            await send({"type": "http.response.body", "body": content[start : start + size], "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _answer(self, scope: Scope, body: bytes) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        """What the application says: status, headers, and the whole body."""
        start: dict[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        return start["status"], list(start["headers"]), b"".join(parts)


async def _whole(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def _reply(send: Send, status: int, body: bytes, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    kept = [pair for pair in headers or [(b"content-type", b"application/json")] if pair[0] != b"content-length"]
    kept.append((b"content-length", str(len(body)).encode()))
    await send({"type": "http.response.start", "status": status, "headers": kept})
    await send({"type": "http.response.body", "body": body})


def _without_content(content: bytes) -> bytes:
    """The same answer with content null and no call, if it is one JSON document; else nothing of it."""
    try:
        answer = json.loads(content)
    except ValueError:
        return b""
    answer["choices"][0]["message"] = {"role": "assistant", "content": None}
    return json.dumps(answer).encode()
