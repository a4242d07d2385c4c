"""An engine without a model: a function from the conversation so far to the next message's ids."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from nanocode.conversation import Message, parse
from nanocode.tokenizer import Tokenizer


class ScriptedEngine:
    """`reply(conversation, stream)` gives the ids that the model would generate; `batches` keeps who asked together."""

    def __init__(
        self, tokenizer: Tokenizer, reply: Callable[[list[Message], int], list[int]], context_tokens: int = 100_000
    ) -> None:
        self.tokenizer, self.context_tokens = tokenizer, context_tokens
        self._reply = reply
        self.batches: list[list[int]] = []
        self.settings: list[dict[str, Any]] = []

    def generate(self, prompts: Sequence[Sequence[int]], *, streams: Sequence[int], **settings: Any) -> list[list[int]]:
        self.batches.append(list(streams))
        self.settings.append(settings)
        return [
            self._reply(parse(prompt[:-1], self.tokenizer), stream)
            for prompt, stream in zip(prompts, streams, strict=True)
        ]


@pytest.fixture
def scripted(tokenizer: Tokenizer) -> Callable[..., ScriptedEngine]:
    """`scripted(reply, context_tokens=...)`."""
    return lambda reply, **kwargs: ScriptedEngine(tokenizer, reply, **kwargs)


@pytest.fixture
def within() -> Callable[..., Any]:
    """`within(seconds, function)`: its result or exception; one that hangs fails the test, not the suite."""

    def run(seconds: float, function: Callable[[], Any]) -> Any:
        future: Future[Any] = Future()

        def target() -> None:
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - handed to the test as it is
                future.set_exception(error)

        threading.Thread(target=target, daemon=True).start()
        return future.result(timeout=seconds)

    return run
