"""Asking for JSON: the request, one repair turn if the reply cannot be read, and then no answer rather than a guess."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from nanocode.constitution import prompts
from nanocode.constitution.endpoint import Completion, Endpoint
from nanocode.constitution.parsing import CriticReply, Unparsed, parse_critique
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation

CRITIC_SCHEMA_NAME = "critique"

Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Asking:
    """On whose behalf: `sample` and `seed` of the requests, and who hears of each completion."""

    sample: str
    seed: int
    note: Callable[[Completion], None] = lambda completion: None


async def ask_critic(critic: Endpoint, conversation: Conversation, soul: Soul, asking: Asking) -> CriticReply | None:
    """The critic's judgement of a whole conversation, None when it cannot be read. Raises as `Endpoint.complete`."""
    messages = prompts.critic_messages(conversation, prompts.system_prompt("critic", soul))
    schema = (CRITIC_SCHEMA_NAME, prompts.critic_schema(soul))
    parse = functools.partial(parse_critique, principles=soul.ids)
    return await ask_until_parsed(critic, messages, schema, parse, asking)


async def ask_until_parsed(
    endpoint: Endpoint,
    messages: list[dict[str, Any]],
    schema: tuple[str, dict[str, Any]],
    parse: Callable[[str], Parsed],
    asking: Asking,
) -> Parsed | None:
    """What `parse` makes of the reply, after one repair turn if need be; None when neither can be read."""
    completion = await endpoint.complete(messages, sample=asking.sample, seed=asking.seed, schema=schema)
    asking.note(completion)
    try:
        return parse(completion.message.content)
    except Unparsed as fault:
        messages = prompts.repair_messages(messages, completion.message.content, str(fault))
    completion = await endpoint.complete(messages, sample=asking.sample, seed=asking.seed, schema=schema)
    asking.note(completion)
    try:
        return parse(completion.message.content)
    except Unparsed:
        return None
