"""From tokens as they are delivered to a whole completion, or to the events of a stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanocode.conversation import ToolCall
from nanocode.serving.chat_request import ApiError, ChatRequest
from nanocode.serving.openai_format import (
    Choice,
    Ended,
    Piece,
    Token,
    call_json,
    choice_json,
    delta_json,
    log_probability_json,
    usage_json,
)
from nanocode.serving.scheduler import Closed, Ticket
from nanocode.serving.streaming import END, chunk_head, event
from nanocode.tokenizer import Tokenizer

Take = Callable[[], Awaitable[tuple[int, Sequence[Token] | Exception | None]]]


@dataclass
class Reply:
    """The choices of one request, and what every part of the answer says (`head`: id, created, model, ...)."""

    asked: ChatRequest
    tokenizer: Tokenizer
    prompt_tokens: int
    head: Mapping[str, Any]
    choices: list[Choice] = field(init=False)

    def __post_init__(self) -> None:
        self.choices = [
            Choice(self.tokenizer, self.asked.stop, self.asked.tools is not None) for _ in range(self.asked.choices)
        ]

    def usage(self) -> dict[str, int]:
        """Token counts of all choices together."""
        return usage_json(self.prompt_tokens, sum(len(choice.tokens) for choice in self.choices))

    def call(self, call: ToolCall | None) -> dict[str, Any] | None:
        """A call in OpenAI's form."""
        if call is None:
            return None
        return call_json(call, len(self.asked.messages), self.asked.tools or {})

    def scores(self, tokens: Sequence[Token]) -> list[dict[str, Any]] | None:
        """Log-probabilities of the tokens of the text, where asked for."""
        return log_probability_json(tokens, self.tokenizer) if self.asked.log_probabilities else None


async def completion(reply: Reply, take: Take, tickets: Sequence[Ticket]) -> dict[str, Any]:
    """The whole answer. Raises ApiError."""
    pieces: list[list[Piece]] = [[] for _ in tickets]
    ended: dict[int, Ended] = {}
    while len(ended) < len(tickets):
        index, what = await take()
        choice = reply.choices[index]
        if what is None:
            ended[index] = choice.end()
        else:
            pieces[index] += [choice.add(token) for token in _tokens(what)]
            if choice.is_over:
                tickets[index].cancel()
    done = []
    for index, mine in enumerate(pieces):
        text = "".join(piece.text for piece in [*mine, ended[index].rest])
        scores = reply.scores([token for piece in mine for token in piece.tokens])
        done.append(choice_json(index, text, reply.call(ended[index].call), ended[index].reason, scores))
    return {"object": "chat.completion", **reply.head, "choices": done, "usage": reply.usage()}


async def chunks(reply: Reply, take: Take, tickets: Sequence[Ticket]) -> AsyncIterator[bytes]:
    """The answer as server-sent events. A failure under way is an event with `error`, the last one."""
    head = chunk_head(reply.head) | {"system_fingerprint": reply.head["system_fingerprint"]}

    def chunk(*choices: Mapping[str, Any]) -> bytes:
        return event(head | {"choices": list(choices)})

    try:
        for index in range(len(tickets)):
            yield chunk(delta_json(index, {"role": "assistant", "content": ""}))
        open_choices = len(tickets)
        while open_choices:
            index, what = await take()
            choice = reply.choices[index]
            if what is None:
                open_choices -= 1
                for delta in _last_deltas(reply, index, choice.end()):
                    yield chunk(delta)
                continue
            for piece in map(choice.add, _tokens(what)):
                if piece.text or (piece.tokens and reply.asked.log_probabilities):
                    yield chunk(delta_json(index, {"content": piece.text}, logprobs=reply.scores(piece.tokens)))
            if choice.is_over:
                tickets[index].cancel()
        if reply.asked.include_usage:
            yield event(head | {"choices": [], "usage": reply.usage()})
        yield END
    except ApiError as error:
        yield event(error.to_json())


def _last_deltas(reply: Reply, index: int, ended: Ended) -> list[dict[str, Any]]:
    deltas = []
    if ended.rest.text:
        deltas.append(delta_json(index, {"content": ended.rest.text}))
    call = reply.call(ended.call)
    if call is not None:
        deltas.append(delta_json(index, {"tool_calls": [{"index": 0, **call}]}))
    return [*deltas, delta_json(index, {}, ended.reason)]


def _tokens(what: Sequence[Token] | Exception) -> Sequence[Token]:
    if isinstance(what, Closed):
        raise ApiError(str(what), 503, "shutting_down") from what
    if isinstance(what, Exception):
        raise ApiError("decoding failed: the server's log says why", 500, "internal_error") from what
    return what
