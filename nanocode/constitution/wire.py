"""Conversations in OpenAI's chat form and back: ``tool_calls`` on assistant messages, results in the role ``tool``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

from nanocode.conversation import Conversation, Message, ToolCall


class WireError(ValueError):
    """Messages that are not a nanocode conversation. The message is one line and names the index."""


def to_openai(conversation: Conversation) -> list[dict[str, Any]]:
    """Chat messages for an endpoint. A call's id is its position: equal conversations give equal bytes."""
    out: list[dict[str, Any]] = []
    for index, message in enumerate(conversation):
        if message.role == "tool_result":
            out.append({"role": "tool", "tool_call_id": f"call_{index - 1}", "content": message.content})
        elif message.tool_call is None:
            out.append({"role": message.role, "content": message.content})
        else:
            call = openai_call(message.tool_call, index)
            out.append({"role": "assistant", "content": message.content or None, "tool_calls": [call]})
    return out


def openai_call(call: ToolCall, index: int) -> dict[str, Any]:
    """One entry of ``tool_calls``."""
    arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": call.name, "arguments": arguments}}


def from_openai(messages: Sequence[Any]) -> list[Message]:
    """The inverse of `to_openai`. Raises WireError on anything that a nanocode conversation cannot hold."""
    if not isinstance(messages, Sequence) or isinstance(messages, (str, bytes)):
        raise WireError("messages must be a list")
    return [_message(entry, f"messages[{index}]") for index, entry in enumerate(messages)]


def _message(entry: Any, where: str) -> Message:
    if not isinstance(entry, Mapping):
        raise WireError(f"{where} must be an object")
    role, content = entry.get("role"), entry.get("content")
    if role == "assistant":
        return message_from_reply(entry, where)
    if role not in ("system", "user", "tool"):
        raise WireError(f"{where}: unknown role {role!r}: expected system, user, assistant or tool")
    if not isinstance(content, str):
        raise WireError(f"{where}: content must be a string")
    if not is_text(content):
        raise WireError(f"{where}: content holds half of a surrogate pair")
    kept = "tool_result" if role == "tool" else role
    return Message(cast(Literal["system", "user", "tool_result"], kept), content)


def is_text(value: str) -> bool:
    """Whether it can be written down: half of a surrogate pair, which JSON can carry by an escape, cannot."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def message_from_reply(reply: Mapping[str, Any], where: str = "the reply") -> Message:
    """An assistant message from a completion's ``message``. Raises WireError on more than one call or on odd arguments.

    Values that are numbers or booleans in the arguments' JSON become their JSON text: tools take strings.
    """
    content = reply.get("content")
    if content is None:
        content = ""
    if not isinstance(content, str):
        raise WireError(f"{where}: content must be a string or null")
    calls = reply.get("tool_calls") or []
    if not is_text(content):
        raise WireError(f"{where}: content holds half of a surrogate pair")
    if not isinstance(calls, list):
        raise WireError(f"{where}: tool_calls must be a list")
    if len(calls) > 1:
        raise WireError(f"{where}: {len(calls)} tool calls in one turn, nanocode takes one")
    return Message("assistant", content, _call(calls[0], where) if calls else None)


def _call(entry: Any, where: str) -> ToolCall:
    try:
        name, raw = entry["function"]["name"], entry["function"]["arguments"]
        arguments = json.loads(raw)
    except (KeyError, TypeError) as error:
        raise WireError(f"{where}: a tool call needs function.name and function.arguments ({error!r})") from None
    except RecursionError:
        raise WireError(f"{where}: the arguments of {name} are nested too deeply") from None
    except ValueError as error:  # not JSON, or a number of more digits than Python reads
        raise WireError(f"{where}: the arguments of {name} are not JSON: {error}") from None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise WireError(f"{where}: a tool call needs a name and an object of arguments")
    values: dict[str, str] = {}
    for key, value in arguments.items():
        if value is None or isinstance(value, (list, dict)):
            raise WireError(f"{where}: the argument {key!r} of {name} must be a string")
        values[key] = value if isinstance(value, str) else json.dumps(value)
    if not all(map(is_text, [name, *values, *values.values()])):
        raise WireError(f"{where}: the call of {name!r} holds half of a surrogate pair")
    return ToolCall(name, values)
