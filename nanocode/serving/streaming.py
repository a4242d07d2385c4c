"""A chat completion as server-sent events: the same answer in pieces, as OpenAI's API streams it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

END = b"data: [DONE]\n\n"
_PIECE = re.compile(r"\s*\S+\s*\Z|\s*\S+|\s+")


def events(completion: Mapping[str, Any], include_usage: bool) -> Iterator[bytes]:
    """The lines of the stream: role, the text word by word, tool calls, the finish reason, usage if asked, the end."""
    choice = completion["choices"][0]
    message = choice["message"]
    yield _chunk(completion, {"role": "assistant", "content": ""})
    for piece in _PIECE.findall(message.get("content") or ""):
        yield _chunk(completion, {"content": piece})
    for index, call in enumerate(message.get("tool_calls") or ()):
        yield _chunk(completion, {"tool_calls": [{"index": index, **call}]})
    yield _chunk(completion, {}, choice["finish_reason"])
    if include_usage:
        yield event(chunk_head(completion) | {"choices": [], "usage": completion["usage"]})
    yield END


def _chunk(completion: Mapping[str, Any], delta: Mapping[str, Any], finish: str | None = None) -> bytes:
    return event(chunk_head(completion) | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


def chunk_head(completion: Mapping[str, Any]) -> dict[str, Any]:
    """What every chunk of a completion says."""
    kept = {name: completion[name] for name in ("id", "created", "model")}
    return {"object": "chat.completion.chunk", **kept}


def event(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"
