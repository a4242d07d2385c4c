"""The OpenAI-compatible server over a model that says what a function tells it to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from asgi_server import listening

from nanocode.conversation import Message, assistant_ids, parse
from nanocode.serving.gate import Access
from nanocode.serving.scheduler import Scheduler, Work
from nanocode.serving.server import ChatServer, Served
from nanocode.tokenizer import Tokenizer

MODEL = "scripted@1"
CONTEXT_TOKENS = 600
LOG_PROBABILITY = -0.5

Say = Callable[[list[Message]], "Message | list[int]"]


@dataclass(frozen=True)
class Sampled:
    id: int
    log_probability: float = LOG_PROBABILITY


class Scripted:
    """Decodes what `say` answers to the conversation; `between` is called before each token of a live reply."""

    def __init__(self, tokenizer: Tokenizer, say: Say, between: Callable[[], None] = lambda: None) -> None:
        self.tokenizer, self._say, self._between = tokenizer, say, between
        self.batches: list[list[Work]] = []
        self.closed = 0

    def ids(self, prompt: Sequence[int], max_new_tokens: int) -> list[int]:
        """The reply to a prompt."""
        answer = self._say(parse(prompt[:-1], self.tokenizer))
        ids = assistant_ids(answer, self.tokenizer) if isinstance(answer, Message) else answer
        return ids[:max_new_tokens]

    def batch(self, work: Sequence[Work]) -> list[list[Sampled]]:
        self.batches.append(list(work))
        return [[Sampled(id) for id in self.ids(each.prompt, each.max_new_tokens)] for each in work]

    def stream(self, work: Work) -> Iterator[Sampled]:
        try:
            for id in self.ids(work.prompt, work.max_new_tokens):
                self._between()
                yield Sampled(id)
        finally:
            self.closed += 1


def make_app(
    scripted: Scripted,
    access: Access | None = None,
    *,
    max_waiting: int = 16,
    seats: int = 2,
    context_tokens: int = CONTEXT_TOKENS,
) -> Any:
    """The ASGI application."""
    scheduler = Scheduler(lambda: scripted, scripted.batch, max_waiting=max_waiting, live_seats=seats)
    served = Served(MODEL, frozenset({"scripted"}), "0123456789abcdef", scripted.tokenizer, context_tokens)
    return ChatServer(served, scheduler, clock=lambda: 1_000.0).app(access or Access.at("127.0.0.1", None))


@contextlib.contextmanager
def serving(tokenizer: Tokenizer, say: Say, **options: Any) -> Iterator[str]:
    """Its address."""
    with listening(make_app(Scripted(tokenizer, say), **options)) as address:
        yield address
