"""Conversations as Markdown for a card. What they say is shown, never interpreted: every text is fenced."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

MAX_CHARACTERS = 1_500


def conversation_markdown(messages: Sequence[Mapping[str, Any]]) -> str:
    """The turns under their roles, calls as tool, argument names and values; long texts are cut with a mark."""
    parts = []
    for message in messages:
        call = message.get("tool_call")
        texts = [message["content"]] if message["content"] else []
        if call is not None:
            texts += [f"{call['name']}", *(f"{name}: {value}" for name, value in call["arguments"].items())]
        parts.append(f"**{message['role']}**\n\n{fenced(chr(10).join(texts))}")
    return "\n\n".join(parts)


def fenced(text: str) -> str:
    """A code block that no text can end."""
    shown = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}\n... {len(text):,} characters"
    fence = "`" * (1 + max([2, *(len(run) for run in re.findall(r"`+", shown))]))
    return f"{fence}text\n{shown}\n{fence}"
