"""Requests in front of one engine: a bounded queue, one thread that decodes, and whose turn it is.

The engine belongs to whoever came first. Work whose tokens are wanted at once runs live, several conversations taking
turns token by token, each with a decoder that remembers the conversation it served last. Other work waits until it is
the oldest; then all that wait with the same sampling and tools are decoded in one batch. So nothing waits for what came
later, except for the tokens that share its turns.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from nanocode.inference.sampling import Sampling
from nanocode.serving.openai_format import Token

BATCH_ROWS = 32
_LOG = logging.getLogger(__name__)


class QueueFull(RuntimeError):
    """More work than may wait; nothing of what was submitted has been taken."""


class Closed(RuntimeError):
    """The scheduler has ended."""


Tools = tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]


@dataclass(frozen=True)
class Work:
    """One reply to decode.

    `live`: its tokens are wanted as they come. `stream` names the random stream under the seed of `sampling`; that of
    live work is always the length of its prompt. `tools`: name, required and optional arguments of what may be called.
    """

    prompt: tuple[int, ...]
    max_new_tokens: int
    sampling: Sampling
    stream: int
    live: bool
    tools: Tools = ()


class Live(Protocol):
    """A decoder of one conversation at a time, which need not read again what it read and said last."""

    def stream(self, work: Work) -> Iterator[Token]:
        """The tokens of the reply, the stop token last."""


Batch = Callable[[Sequence[Work]], Sequence[Sequence[Token]]]
Deliver = Callable[[Sequence[Token] | Exception | None], None]


@dataclass(eq=False)
class Ticket:
    """Work that was taken. `deliver` hears tokens, then None or an exception, on the scheduler's thread."""

    work: Work
    deliver: Deliver
    number: int = 0
    cancelled: bool = field(default=False, init=False)

    def cancel(self) -> None:
        """Nobody waits for it any more: it leaves the queue, or stops after the token it is at."""
        self.cancelled = True


@dataclass(eq=False)
class _Seat:
    """A live decoder, what it has read and said last, and for whom it works now."""

    decoder: Live
    known: list[int] = field(default_factory=list)
    taken_by: int = 0
    ticket: Ticket | None = None
    tokens: Iterator[Token] | None = None

    def continued_by(self, prompt: Sequence[int]) -> int:
        """How many tokens of a prompt are all that was known here; 0 when it is another conversation's."""
        return len(self.known) if list(prompt[: len(self.known)]) == self.known else 0


class Scheduler:
    """Decodes what is submitted, on a thread of its own, until `close`."""

    def __init__(self, make_live: Callable[[], Live], batch: Batch, *, max_waiting: int, live_seats: int) -> None:
        self._batch, self._max_waiting = batch, max_waiting
        self._seats = [_Seat(make_live()) for _ in range(live_seats)]
        self._waiting: deque[Ticket] = deque()
        self._condition = threading.Condition()
        self._submitted, self._closed = 0, False
        self._thread = threading.Thread(target=self._run, name="decoding", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How much work waits for its first token."""
        with self._condition:
            return sum(not ticket.cancelled for ticket in self._waiting)

    def submit(self, tickets: Sequence[Ticket]) -> None:
        """Take all of them or none. Raises QueueFull, Closed."""
        with self._condition:
            if self._closed:
                raise Closed("the server is shutting down")
            self._waiting = deque(ticket for ticket in self._waiting if not ticket.cancelled)
            if len(self._waiting) + len(tickets) > self._max_waiting:
                raise QueueFull(f"{len(self._waiting)} replies are waiting already, at most {self._max_waiting} may")
            for ticket in tickets:
                self._submitted += 1
                ticket.number = self._submitted
                self._waiting.append(ticket)
            self._condition.notify()

    def close(self) -> None:
        """End after the token or the batch that is being decoded; what is left hears `Closed`."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._closed or self._waiting or self._busy())
                if self._closed:
                    break
                together = self._take()
            if together:
                self._decode_batch(together)
            else:
                for seat in self._busy():
                    self._advance(seat)
        for ticket in [*self._waiting, *(seat.ticket for seat in self._busy() if seat.ticket)]:
            ticket.deliver(Closed("the server is shutting down"))

    def _busy(self) -> list[_Seat]:
        return [seat for seat in self._seats if seat.ticket is not None]

    def _take(self) -> list[Ticket]:
        """Seat what is live; the batch whose turn it is, or none when it is the live conversations' turn."""
        self._waiting = deque(ticket for ticket in self._waiting if not ticket.cancelled)
        for ticket in [ticket for ticket in self._waiting if ticket.work.live]:
            if len(self._busy()) == len(self._seats):
                break
            self._waiting.remove(ticket)
            self._seat(ticket)
        others = [ticket for ticket in self._waiting if not ticket.work.live]
        oldest_live = min((seat.ticket.number for seat in self._busy() if seat.ticket), default=None)
        if not others or (oldest_live is not None and oldest_live < others[0].number):
            return []
        first = others[0].work
        alike = [each for each in others if (each.work.sampling, each.work.tools) == (first.sampling, first.tools)]
        together = alike[:BATCH_ROWS]
        for ticket in together:
            self._waiting.remove(ticket)
        return together

    def _seat(self, ticket: Ticket) -> None:
        """Give it the free decoder that served its conversation last, else the one that has rested longest."""
        prompt = ticket.work.prompt
        free = [seat for seat in self._seats if seat.ticket is None]
        seat = max(free, key=lambda seat: (seat.continued_by(prompt), -seat.taken_by))
        seat.ticket, seat.known, seat.taken_by = ticket, list(prompt), ticket.number

    def _advance(self, seat: _Seat) -> None:
        """One token of a live conversation, or its end."""
        ticket = seat.ticket
        assert ticket is not None
        try:
            if seat.tokens is None:
                seat.tokens = seat.decoder.stream(ticket.work)
            token = None if ticket.cancelled else next(seat.tokens, None)
        except Exception as error:  # noqa: BLE001 - one request's failure must not end all others'
            _LOG.exception("decoding failed")
            self._leave(seat)
            ticket.deliver(error)
            return
        if token is None:
            self._leave(seat)
            ticket.deliver(None)
        else:
            seat.known.append(token.id)
            ticket.deliver([token])

    def _leave(self, seat: _Seat) -> None:
        close = getattr(seat.tokens, "close", None)
        if close is not None:
            close()
        seat.ticket = seat.tokens = None

    def _decode_batch(self, tickets: Sequence[Ticket]) -> None:
        try:
            replies = self._batch([ticket.work for ticket in tickets])
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.exception("decoding failed")
            for ticket in tickets:
                ticket.deliver(error)
            return
        for ticket, reply in zip(tickets, replies, strict=True):
            ticket.deliver(reply)
            ticket.deliver(None)
