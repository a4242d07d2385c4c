"""Recover when a search or a file comes back empty: say so plainly, invent nothing, change nothing.

The requests are those of other families, word for word, and so is the expert: only the workspace differs. The model
must look at the result to know which case it is in.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from nanocode.conversation import Message
from nanocode.tasks.families import edit, grep, read, rename
from nanocode.tasks.family import Family, Phrasing, Scene, Step, Voice, other_numbers
from nanocode.tasks.layouts import MIXED, module_text
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

_BORROWED = {module.FAMILY.name: module.FAMILY for module in (grep, read, edit, rename)}
PHRASINGS = tuple(
    replace(phrasing, variant=f"{name}-{phrasing.variant}")
    for name, family in _BORROWED.items()
    for phrasing in family.phrasings
)
# An answer must say in some way that the thing is not there.
DENIAL = "no|not|nothing|unknown|couldn't|can't|wasn't|didn't|doesn't|Unfortunately"
_MISSING_FILE_SHARE = 0.4
_CLAIMED_LINES = tuple(f"line {number}" for number in range(1, 10))


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    fields = {
        "path": names.path(),
        "name": names.function(),
        "new_name": names.function(),
        "constant": names.constant(),
        "value": names.value(),
    }
    asked = {key: value for key, value in fields.items() if f"{{{key}}}" in phrasing.template}
    names_file = "path" in asked
    path = names.path() if names_file and rng.random() < _MISSING_FILE_SHARE else fields["path"]
    text = module_text(MIXED.draw(phrasing, rng), names, rng)
    files = {path: text}
    forbidden = [asked[key] for key in ("value", "new_name") if key in asked]
    forbidden += other_numbers(text, ()) if names_file else [path, *_CLAIMED_LINES]
    expect = Expectation(
        files=files,
        facts=(asked.get("constant") or asked["name"], DENIAL),
        forbidden=tuple(forbidden),
        tools=("Read|Grep|Bash",),
    )
    return Scene(asked, files, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    name, _, variant = fields["variant"].partition("-")
    return _BORROWED[name].respond({**fields, "variant": variant}, steps, voice)


FAMILY = Family("recover", 1.0, PHRASINGS, build, respond)
