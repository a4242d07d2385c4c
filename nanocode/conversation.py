"""Conversations, the one renderer (messages -> token ids + loss mask) and the one parser (token ids -> messages).

Training, preference data, evaluation, server and terminal all go through this module, so that what a live session feeds
the model equals, id for id, what training showed it. The wire format (design from salmanmohammadi/nanocode's token
table):

    <|bos|> <|user_start|> text <|user_end|>
    <|assistant_start|> text? (<|tool_call_start|> NAME (<|tool_arg|> KEY <|tool_val|> VALUE)* <|tool_call_end|>)?
        <|assistant_end|>
    <|tool_result_start|> text <|tool_result_end|>

Text is always encoded as ordinary tokens: a file that contains the characters ``<|tool_call_start|>`` stays text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal, get_args

from nanocode.tokenizer import Tokenizer

Role = Literal["system", "user", "assistant", "tool_result"]


@dataclass(frozen=True)
class ToolCall:
    """One call: the tool's name and its arguments in the order the model wrote them. Values are kept byte for byte."""

    name: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Message:
    """One turn. Only assistant messages may carry a tool call, and at most one."""

    role: Role
    content: str
    tool_call: ToolCall | None = None

    def __post_init__(self) -> None:
        if self.role not in get_args(Role):
            raise ValueError(f"unknown role {self.role!r}: expected one of {', '.join(get_args(Role))}")
        if self.tool_call is not None and self.role != "assistant":
            raise ValueError(f"a {self.role} message cannot carry a tool call")


Conversation = Sequence[Message]


@dataclass(frozen=True)
class Rendered:
    """Token ids and the loss mask of equal length; ``mask[i] == 1`` where the model is trained to produce
    ``ids[i]``.
    """

    ids: list[int]
    mask: list[int]


class ConversationError(ValueError):
    """A conversation that cannot be rendered, or ids that are not a conversation."""


class MalformedReply(ConversationError):
    """A reply that is no assistant message. ``salvaged`` is the nearest one, always with a call (maybe without a name),
    so that a tool result can tell the model of its fault; a session goes on with it in the reply's place.
    """

    def __init__(self, fault: str, salvaged: Message) -> None:
        super().__init__(fault)
        self.salvaged = salvaged


def check_turns(conversation: Conversation) -> None:
    """Raise ConversationError unless the turns follow the grammar: (system)? user (assistant (tool_result
    assistant)*)...
    """
    messages = list(conversation)
    if messages and messages[0].role == "system":
        messages = messages[1:]
    if not messages or messages[0].role != "user":
        raise ConversationError("a conversation opens with a user message (after an optional system message)")
    for previous, message in pairwise(messages):
        called = previous.tool_call is not None
        if message.role == "system":
            raise ConversationError("a system message can only come first")
        if message.role == "tool_result" and not called:
            raise ConversationError("a tool result must follow an assistant message with a tool call")
        if called and message.role != "tool_result":
            raise ConversationError(f"a tool call must be answered by a tool result, not by a {message.role} message")
        if message.role == "user" and previous.role != "assistant":
            raise ConversationError(f"a user message cannot follow a {previous.role} message")
        if message.role == "assistant" and previous.role not in ("user", "tool_result"):
            raise ConversationError("an assistant message must follow a user message or a tool result")


def render(conversation: Conversation, tokenizer: Tokenizer) -> Rendered:
    """Token ids and loss mask of a whole conversation.

    Trained (mask 1): assistant text, the whole tool call, ``<|tool_call_end|>`` and ``<|assistant_end|>``. Everything
    else, tool results and ``<|assistant_start|>`` included, is context (mask 0).
    """
    check_turns(conversation)
    special = tokenizer.special
    ids, mask = [special["<|bos|>"]], [0]

    def put(tokens: list[int], trained: int) -> None:
        ids.extend(tokens)
        mask.extend([trained] * len(tokens))

    for message in _merge_system(conversation):
        if message.role == "user":
            put([special["<|user_start|>"], *tokenizer.encode(message.content), special["<|user_end|>"]], 0)
        elif message.role == "tool_result":
            put([special["<|tool_result_start|>"], *tokenizer.encode(message.content)], 0)
            put([special["<|tool_result_end|>"]], 0)
        else:
            put([special["<|assistant_start|>"]], 0)
            put(assistant_ids(message, tokenizer), 1)
    return Rendered(ids, mask)


def assistant_ids(message: Message, tokenizer: Tokenizer) -> list[int]:
    """The ids that the model itself produces for one assistant message, ``<|assistant_end|>`` included."""
    special = tokenizer.special
    ids = tokenizer.encode(message.content)
    if message.tool_call is not None:
        ids += [special["<|tool_call_start|>"], *tokenizer.encode(message.tool_call.name)]
        for key, value in message.tool_call.arguments.items():
            ids += [special["<|tool_arg|>"], *tokenizer.encode(key), special["<|tool_val|>"], *tokenizer.encode(value)]
        ids.append(special["<|tool_call_end|>"])
    return [*ids, special["<|assistant_end|>"]]


def render_prompt(conversation: Conversation, tokenizer: Tokenizer) -> list[int]:
    """Ids that a live session feeds the model to get its next turn: everything so far, then ``<|assistant_start|>``."""
    if not conversation:
        raise ConversationError("there is nothing to answer: the conversation is empty")
    if conversation[-1].role not in ("user", "tool_result"):
        raise ConversationError(f"the assistant cannot answer a {conversation[-1].role} message")
    return [*render(conversation, tokenizer).ids, tokenizer.special["<|assistant_start|>"]]


def parse_assistant(ids: Sequence[int], tokenizer: Tokenizer) -> Message:
    """The assistant message in generated ids (what follows ``<|assistant_start|>``; a closing ``<|assistant_end|>`` is
    optional).

    Raises MalformedReply on anything else, naming the fault: such ids have no rendering, hence no place in a
    conversation; what can be salvaged from them does.
    """
    try:
        return _parse_reply(ids, tokenizer)
    except ConversationError as error:
        raise MalformedReply(str(error), salvage(ids, tokenizer)) from None


def salvage(ids: Sequence[int], tokenizer: Tokenizer) -> Message:
    """The well-formed assistant message nearest to malformed ids: text up to the call, its name, its whole arguments.

    The call starts at the first token of tool calls, and ends at ``<|tool_call_end|>`` or the turn's end. An argument
    is whole when another or the call's end follows; of one key the first counts. Control tokens elsewhere vanish.
    """
    special, decode = tokenizer.special, tokenizer.decode
    body = _split(ids, special["<|assistant_end|>"])[0]
    parts = {special[f"<|tool_{part}|>"] for part in ("call_start", "arg", "val", "call_end")}
    at = next((place for place, token in enumerate(body) if token in parts), len(body))
    call_ids = body[at + 1 :] if body[at : at + 1] == [special["<|tool_call_start|>"]] else body[at:]
    closed, *after = _split(call_ids, special["<|tool_call_end|>"])
    name_ids, *pairs = _split(closed, special["<|tool_arg|>"])
    arguments: dict[str, str] = {}
    for pair in pairs if after else pairs[:-1]:
        keys_and_values = _split(pair, special["<|tool_val|>"])
        if len(keys_and_values) == 2:
            arguments.setdefault(decode(keys_and_values[0]), decode(keys_and_values[1]))
    name = decode(_split(name_ids, special["<|tool_val|>"])[0])
    return Message("assistant", decode(body[:at]), ToolCall(name, arguments))


def _parse_reply(ids: Sequence[int], tokenizer: Tokenizer) -> Message:
    special = tokenizer.special
    body = list(ids)
    if body and body[-1] == special["<|assistant_end|>"]:
        body.pop()
    start, end = special["<|tool_call_start|>"], special["<|tool_call_end|>"]
    text_ids, call = body, None
    if start in body:
        at = body.index(start)
        text_ids, call_ids = body[:at], body[at + 1 :]
        if not call_ids or call_ids[-1] != end:
            raise ConversationError("the tool call is not closed by <|tool_call_end|>")
        call = _parse_call(call_ids[:-1], tokenizer)
    if any(token in tokenizer.special_ids for token in text_ids):
        raise ConversationError("a control token stands inside the assistant's text")
    return Message("assistant", tokenizer.decode(text_ids), call)


def _parse_call(ids: list[int], tokenizer: Tokenizer) -> ToolCall:
    """NAME (<|tool_arg|> KEY <|tool_val|> VALUE)*, delimiters already removed."""
    special = tokenizer.special
    name_ids, *pairs = _split(ids, special["<|tool_arg|>"])
    arguments: dict[str, str] = {}
    for pair in pairs:
        parts = _split(pair, special["<|tool_val|>"])
        if len(parts) != 2:
            raise ConversationError("a tool argument needs exactly one <|tool_val|>")
        key = _ordinary_text(parts[0], tokenizer)
        if key in arguments:
            raise ConversationError(f"the tool argument {key!r} is given twice")
        arguments[key] = _ordinary_text(parts[1], tokenizer)
    return ToolCall(_ordinary_text(name_ids, tokenizer), arguments)


def _ordinary_text(ids: list[int], tokenizer: Tokenizer) -> str:
    if any(token in tokenizer.special_ids for token in ids):
        raise ConversationError("a control token stands inside the tool call")
    return tokenizer.decode(ids)


def _split(ids: Sequence[int], separator: int) -> list[list[int]]:
    parts: list[list[int]] = [[]]
    for token in ids:
        if token == separator:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def parse(ids: Sequence[int], tokenizer: Tokenizer) -> list[Message]:
    """The messages in a rendered conversation; the inverse of `render` but for a system message, which stays merged."""
    special = tokenizer.special
    if not ids or ids[0] != special["<|bos|>"]:
        raise ConversationError("a conversation opens with <|bos|>")
    closers = {
        special["<|user_start|>"]: ("user", special["<|user_end|>"]),
        special["<|assistant_start|>"]: ("assistant", special["<|assistant_end|>"]),
        special["<|tool_result_start|>"]: ("tool_result", special["<|tool_result_end|>"]),
    }
    messages: list[Message] = []
    position = 1
    while position < len(ids):
        if ids[position] not in closers:
            raise ConversationError(f"token {position} does not open a turn")
        role, closer = closers[ids[position]]
        try:
            end = ids.index(closer, position)
        except ValueError:
            raise ConversationError(f"the {role} turn at token {position} is not closed") from None
        body = list(ids[position + 1 : end])
        if role == "assistant":
            messages.append(parse_assistant(body, tokenizer))
        else:
            messages.append(Message(role, _ordinary_text(body, tokenizer)))  # type: ignore[arg-type]
        position = end + 1
    return messages


def _merge_system(conversation: Conversation) -> Iterable[Message]:
    """A system message opens the first user turn, set off by a blank line."""
    first, *rest = conversation
    if first.role != "system":
        return conversation
    user, *rest = rest
    return [Message("user", f"{first.content}\n\n{user.content}"), *rest]


def to_json(conversation: Conversation) -> list[dict[str, Any]]:
    """Plain JSON values: ``[{"role", "content", "tool_call": {"name", "arguments"}?}, ...]``."""
    out: list[dict[str, Any]] = []
    for message in conversation:
        entry: dict[str, Any] = {"role": message.role, "content": message.content}
        if message.tool_call is not None:
            entry["tool_call"] = {"name": message.tool_call.name, "arguments": dict(message.tool_call.arguments)}
        out.append(entry)
    return out


def from_json(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """The inverse of `to_json`; a ``tool_call`` of null counts as absent. Raises ConversationError on anything else."""
    out = []
    for index, entry in enumerate(messages):
        try:
            call = entry.get("tool_call")
            tool_call = None
            if call is not None:
                arguments = call["arguments"]
                if not all(isinstance(value, str) for value in arguments.values()):
                    raise ConversationError(f"message {index}: tool arguments must be strings")
                tool_call = ToolCall(call["name"], dict(arguments))
            if not isinstance(entry["content"], str):
                raise ConversationError(f"message {index}: content must be a string")
            out.append(Message(entry["role"], entry["content"], tool_call))
        except (KeyError, AttributeError, TypeError) as error:
            raise ConversationError(f"message {index} is malformed ({error}): {json.dumps(entry)[:120]}") from error
    return out
