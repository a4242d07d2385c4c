"""All families: drawing tasks for a split, and the expert that answers any of them.

The expert sees what the agent sees: the prompt, and what the tools answered. `family_of` and `respond` know a family by
the wording alone; ``recover`` and ``refused`` ask in the words of others, so their prompts belong to the one they sound
like.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from nanocode.conversation import Message
from nanocode.tasks.families import (
    ask,
    chat,
    count,
    create,
    edit,
    fix,
    grep,
    insert,
    read,
    recover,
    refused,
    rename,
    run,
)
from nanocode.tasks.family import Family, NotRecognised, Phrasing, Step, Voice
from nanocode.tasks.task import Register, Task, TaskError
from nanocode.tasks.words import Names, Split

_MODULES = (read, grep, edit, rename, insert, count, fix, run, create, ask, chat, recover, refused)
FAMILIES: dict[str, Family] = {module.FAMILY.name: module.FAMILY for module in _MODULES}

# In evaluation, the share of tasks that use their family's held-out variant.
HELD_OUT_SHARE = 0.5
_ATTEMPTS = 200


def sample_tasks(split: Split, n: int, seed: int, families: Sequence[str] | None = None) -> list[Task]:
    """`n` different tasks of a split, mixed by the families' weights (or from `families` alone).

    The first k of n are the tasks that asking for k gives. Raises TaskError on an unknown family, and when the families
    cannot give so many different tasks.
    """
    tasks: dict[str, Task] = {}
    for index in range(n):
        for attempt in range(_ATTEMPTS):
            task = task_at(split, seed, index, families, attempt)
            if task.id not in tasks:
                tasks[task.id] = task
                break
        else:
            raise TaskError(f"split {split} has too few different tasks for n={n}: ask for fewer or for more families")
    return list(tasks.values())


def task_at(split: Split, seed: int, index: int, families: Sequence[str] | None = None, attempt: int = 0) -> Task:
    """The draw for place `index` of the stream (split, seed); `attempt` > 0 replaces one that repeats another."""
    chosen = _chosen(families)
    rng = random.Random(f"{seed}/{split}/{index}/{attempt}")
    family = rng.choices(chosen, [family.weight for family in chosen])[0]
    phrasing = _phrasing(family, split, rng)
    scene = family.build(phrasing, Names(split, rng), rng)
    return Task.make(
        family=family.name,
        variant=phrasing.variant,
        held_out_variant=phrasing.held_out,
        split=split,
        prompt=phrasing.fill(scene.fields),
        files=scene.files,
        expect=scene.expect,
        consent=scene.consent,
        meanwhile=scene.meanwhile,
        otherwise=scene.otherwise,
    )


def respond(conversation: Sequence[Message], register: Register, choice: int = 0) -> Message:
    """The expert's next message after the last user message and the tool results since. Raises NotRecognised."""
    asked = max((index for index, message in enumerate(conversation) if message.role == "user"), default=None)
    if asked is None:
        raise NotRecognised("the conversation holds no user message")
    family, fields = _recognise(conversation[asked].content)
    return family.respond(fields, _steps(conversation[asked + 1 :]), Voice(register, choice))


def family_of(prompt: str) -> str:
    """The family whose expert answers `prompt`. Raises NotRecognised."""
    return _recognise(prompt)[0].name


def _recognise(prompt: str) -> tuple[Family, dict[str, str]]:
    for family in FAMILIES.values():
        for phrasing in family.phrasings:
            fields = phrasing.match(prompt)
            if fields is not None:
                return family, {**fields, "variant": phrasing.variant}
    raise NotRecognised(f"no task family asks like this: {prompt[:80]!r}")


def _steps(messages: Sequence[Message]) -> list[Step]:
    return [
        Step(message.tool_call, follow.content)
        for message, follow in pairwise(messages)
        if message.tool_call is not None and follow.role == "tool_result"
    ]


def _chosen(families: Sequence[str] | None) -> list[Family]:
    unknown = sorted(set(families or ()) - set(FAMILIES))
    if unknown:
        raise TaskError(f"unknown task family {unknown[0]!r}: there are {', '.join(FAMILIES)}")
    return [family for name, family in FAMILIES.items() if families is None or name in families]


def _phrasing(family: Family, split: Split, rng: random.Random) -> Phrasing:
    held_out = split == "eval" and rng.random() < HELD_OUT_SHARE
    return rng.choice([phrasing for phrasing in family.phrasings if phrasing.held_out == held_out])
