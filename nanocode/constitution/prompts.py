"""What the generator, the critic and the reviser are told, and the JSON they must answer with.

Every system prompt opens with a role line (`role_line`); the embedded teacher knows by it which of the three is
asked. The generator is not shown the constitution: its draft in the endpoint's own register is what critique,
revision and the rejected side of a preference pair are about.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from nanocode.agent.tools import TOOLS
from nanocode.constitution.soul import Soul
from nanocode.constitution.wire import to_openai
from nanocode.conversation import Conversation, to_json

Part = Literal["generator", "critic", "reviser"]
PARTS: tuple[Part, ...] = ("generator", "critic", "reviser")
TEMPLATE_VERSION = 1
RULES_MODEL = "nanocode-rules"
_ROLE_PREFIX = "nanocode constitution, part: "

_GENERATOR = """\
You are a coding agent in a user's workspace. Work with the tools you are given, one call per turn, and look at
results before you go on. Paths are relative to the workspace. When the work is done, or when no tool is needed,
answer in one or two sentences without a call. If something needed is missing from the request, ask for it."""

_CRITIC = """\
You judge how a coding agent speaks and works, by the constitution below. The user message holds one conversation as a
JSON list; judge the assistant's messages in it, all of them, and nothing else. Score 5 if no principle is broken, one
less for each principle broken, never below 1. Answer with one JSON object and nothing around it:
{"score": 1-5, "violations": [ids of the principles broken], "critique": what to change and where, in a few
sentences}."""

_REVISER = """\
You rewrite what a coding agent said so that it keeps to the constitution below. The user message holds a JSON object
with the conversation and its critique. Rewrite the text of each assistant message, keeping every fact; tool calls and
results stay as they are and are not part of your answer. A text that is empty before a tool call may stay empty.
Answer with one JSON object and nothing around it: {"texts": [one string per assistant message, in order]}."""


def role_line(part: Part) -> str:
    """The first line of the system prompt of `part`."""
    return _ROLE_PREFIX + part


def part_of(system: str) -> Part | None:
    """Which of the three a system prompt addresses; None if it is not one of ours."""
    first = system.split("\n", 1)[0]
    return next((part for part in PARTS if first == role_line(part)), None)


def system_prompt(part: Part, soul: Soul) -> str:
    """The whole system prompt of `part`."""
    if part == "generator":
        return f"{role_line(part)}\n\n{_GENERATOR}"
    body = _CRITIC if part == "critic" else _REVISER
    principles = "\n".join(f"- {principle.id}: {principle.statement}" for principle in soul.principles)
    return f"{role_line(part)}\n\n{body}\n\nThe constitution:\n\n{soul.prose}\n\nIts principles:\n\n{principles}"


def generator_messages(conversation: Conversation, system: str) -> list[dict[str, Any]]:
    """Chat messages that ask for the next assistant turn."""
    return [{"role": "system", "content": system}, *to_openai(conversation)]


def critic_messages(conversation: Conversation, system: str) -> list[dict[str, Any]]:
    """Chat messages that ask for a critique of the whole conversation."""
    content = json.dumps(to_json(conversation), ensure_ascii=False)
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


def reviser_messages(conversation: Conversation, critique: str, system: str) -> list[dict[str, Any]]:
    """Chat messages that ask for new assistant texts; `critique` is the critic's wording."""
    content = json.dumps({"conversation": to_json(conversation), "critique": critique}, ensure_ascii=False)
    return [{"role": "system", "content": system}, {"role": "user", "content": content}]


def repair_messages(asked: Sequence[Mapping[str, Any]], reply: str, fault: str) -> list[dict[str, Any]]:
    """The same request again with the unreadable reply and what was wrong with it: one repair turn."""
    return [
        *(dict(message) for message in asked),
        {"role": "assistant", "content": reply},
        {"role": "user", "content": f"That could not be read: {fault}. Answer again with the JSON object alone."},
    ]


def critic_schema(soul: Soul) -> dict[str, Any]:
    """JSON schema of the critic's reply."""
    return _object(
        score={"type": "integer", "minimum": 1, "maximum": 5},
        violations={"type": "array", "items": {"type": "string", "enum": list(soul.ids)}},
        critique={"type": "string"},
    )


def reviser_schema() -> dict[str, Any]:
    """JSON schema of the reviser's reply."""
    return _object(texts={"type": "array", "items": {"type": "string"}})


def tool_schemas() -> list[dict[str, Any]]:
    """The agent's tools as OpenAI function schemas; every argument is a string."""
    schemas = []
    for spec in TOOLS.values():
        properties = {name: {"type": "string"} for name in (*spec.required, *spec.optional)}
        parameters = _object(**properties) | {"required": list(spec.required)}
        function = {"name": spec.name, "description": spec.description, "parameters": parameters}
        schemas.append({"type": "function", "function": function})
    return schemas


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def template_digest() -> str:
    """sha256 over everything in this module that an endpoint is told; changes with any wording."""
    parts = [TEMPLATE_VERSION, _ROLE_PREFIX, _GENERATOR, _CRITIC, _REVISER, reviser_schema(), tool_schemas()]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
