"""A model's tokens in OpenAI's form: one choice as it comes, whole completions, and chunks of a stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from nanocode.constitution.wire import openai_call
from nanocode.conversation import ConversationError, ToolCall, parse_assistant
from nanocode.inference.reply_text import ReplyText
from nanocode.serving.chat_request import ApiError, ParameterTypes
from nanocode.tokenizer import Tokenizer

FinishReason = Literal["stop", "length", "tool_calls"]
_SHOWN_CHARACTERS = 200


class Token(Protocol):
    """A sampled token: its id and the natural logarithm of its probability."""

    @property
    def id(self) -> int: ...

    @property
    def log_probability(self) -> float: ...


@dataclass(frozen=True)
class Piece:
    """Text that is certain, and the tokens that came with it; a token's text may come with a later piece."""

    text: str
    tokens: tuple[Token, ...]


@dataclass(frozen=True)
class Ended:
    """How a choice ended: the text that was held back, the call if there is one, and why."""

    rest: Piece
    call: ToolCall | None
    reason: FinishReason


@dataclass
class Choice:
    """One reply while it comes. Text never ends inside a UTF-8 character, nor inside what may become a stop string.

    Unless it `may_call`, a reply is text alone and ends where the model begins a call, which it was trained to do
    whether it is asked to or not, or says any other control token.
    """

    tokenizer: Tokenizer
    stop: Sequence[str] = ()
    may_call: bool = True
    tokens: list[Token] = field(default_factory=list, init=False)
    _text: ReplyText = field(init=False, repr=False)
    _held: str = field(default="", init=False)
    _stopped: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        self._text = ReplyText(self.tokenizer)

    @property
    def is_over(self) -> bool:
        """Whether it was stopped: what the model says from here on does not count."""
        return self._stopped

    def add(self, token: Token) -> Piece:
        """Take the next token; returns the text that is certain by now."""
        if self._stopped:
            return Piece("", ())
        self.tokens.append(token)
        if not self.may_call and token.id in self.tokenizer.special_ids:
            text = self._cut(self._held + self._text.end())
            self._stopped, self._held = True, ""
            return Piece(text, ())
        said = self._certain(self._text.add(token.id))
        return Piece(said, () if self._text.is_over else (token,))

    def end(self) -> Ended:
        """After the last token. Raises ApiError (`tool_use_failed`) when the output is no message."""
        text = self._held if self._stopped else self._cut(self._held + self._text.end())
        if self._stopped:
            return Ended(Piece(text, ()), None, "stop")
        ids = [token.id for token in self.tokens]
        if not ids or ids[-1] != self.tokenizer.special["<|assistant_end|>"]:
            return Ended(Piece(text, ()), None, "length")
        try:
            call = parse_assistant(ids, self.tokenizer).tool_call
        except ConversationError as error:
            # Not a server error: asked again, the same model says the same thing again.
            said = self.tokenizer.decode(ids)[:_SHOWN_CHARACTERS]
            raise ApiError(f"the model's output is no message: {error}: {said!r}", 400, "tool_use_failed") from None
        return Ended(Piece(text, ()), call, "stop" if call is None else "tool_calls")

    def _certain(self, text: str) -> str:
        """`text` behind what was held back, without a stop string and what could become one."""
        text = self._cut(self._held + text)
        keep = 0 if self._stopped else max((_overlap(text, stop) for stop in self.stop), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _cut(self, text: str) -> str:
        places = [place for place in map(text.find, self.stop) if place >= 0]
        self._stopped = bool(places)
        return text[: min(places, default=len(text))]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of `text` are a beginning of `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


def call_json(call: ToolCall, position: int, types: ParameterTypes) -> dict[str, Any]:
    """One entry of ``tool_calls``; `position` is the message's in the conversation.

    The model writes strings; where the request's schema wants an integer and the string is one, it becomes a number.
    """
    entry = openai_call(call, position)
    wanted = types.get(call.name, {})
    arguments = {name: _typed(value, wanted.get(name)) for name, value in call.arguments.items()}
    entry["function"]["arguments"] = json.dumps(arguments, ensure_ascii=False)
    return entry


def _typed(value: str, wanted: str | None) -> str | int:
    is_number = wanted in ("integer", "number") and value.isascii() and value.isdigit() and str(int(value)) == value
    return int(value) if is_number else value


def log_probability_json(tokens: Sequence[Token], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The entries of ``logprobs.content``; natural logarithms."""
    entries = []
    for token in tokens:
        raw = tokenizer.decode_bytes([token.id])
        entries.append(
            {
                "token": raw.decode("utf-8", errors="replace"),
                "logprob": token.log_probability,
                "bytes": list(raw),
                "top_logprobs": [],
            }
        )
    return entries


def usage_json(prompt_tokens: int, completion_tokens: int) -> dict[str, int]:
    """Token counts: of the prompt as the model reads it, and of what it said, control tokens included in both."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
    }


def choice_json(
    index: int, text: str, call: Mapping[str, Any] | None, reason: FinishReason, logprobs: Sequence[Any] | None
) -> dict[str, Any]:
    """One finished choice."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if call is not None:
        message |= {"content": text or None, "tool_calls": [call]}
    scored = None if logprobs is None else {"content": list(logprobs), "refusal": None}
    return {"index": index, "message": message, "finish_reason": reason, "logprobs": scored}


def delta_json(
    index: int, delta: Mapping[str, Any], reason: FinishReason | None = None, logprobs: Sequence[Any] | None = None
) -> dict[str, Any]:
    """One choice's part of a chunk."""
    scored = None if logprobs is None else {"content": list(logprobs), "refusal": None}
    return {"index": index, "delta": dict(delta), "finish_reason": reason, "logprobs": scored}
