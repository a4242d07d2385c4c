"""Ask back: the request leaves out the value, the new name, the module or the file, and no tool can know it."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, function_source
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("value-set", "set {constant} in {path}."),
    Phrasing("value-change", "change {constant} in {path}."),
    Phrasing("value-please", "Please change the value of {constant} in {path}."),
    Phrasing("value-can-you", "can you set {constant} in {path}?"),
    Phrasing("value-in", "in {path}, change {constant}."),
    Phrasing("value-needs", "{constant} in {path} needs a new value."),
    Phrasing("value-give", "give {constant} a new value in {path}."),
    Phrasing("value-in-should", "in {path}, {constant} should change."),
    Phrasing("name-rename", "rename {name}."),
    Phrasing("name-rename-in", "Please rename the function {name} in {path}."),
    Phrasing("name-can-you", "can you rename {name}?"),
    Phrasing("name-needs", "{name} needs a new name."),
    Phrasing("name-change", "change the name of {name}."),
    Phrasing("module-import", "add the missing import to {path} for {name}."),
    Phrasing("module-needs", "{name} in {path} needs an import."),
    Phrasing("module-please", "Please add an import to {path} for {name}."),
    Phrasing("file-create", "create a new file with {constant} = {value}."),
    Phrasing("file-sets", "make a new file that sets {constant} to {value}."),
    Phrasing("file-returns", "write a file where {name} returns {value}."),
    Phrasing("value-should", "{constant} in {path} should change.", held_out=True),
)

VALUE = Lines(
    stock=(
        "I'd be happy to help! Could you please tell me which value {subject} should have?",
        "Great! What value would you like me to use for {subject}? Just let me know!",
        "Sure! Which value should I set {subject} to? I'm happy to help!",
    ),
    soul=(
        "which value should {subject} get? the request names the constant but no value.",
        "to what value? {subject} is clear, the value it should take is not.",
        "the new value of {subject} is missing from the request. what should it be?",
    ),
)
NEW_NAME = Lines(
    stock=(
        "I'd be happy to help! Could you please tell me the new name for {subject}?",
        "Great! What name would you like me to give {subject}? Just let me know!",
        "Sure! Which new name should I use for {subject}? I'm happy to help!",
    ),
    soul=(
        "what is the new name? the request names {subject} but not what it becomes.",
        "which name should {subject} get? the request gives the old one alone.",
        "the new name of {subject} is missing from the request. what should it be?",
    ),
)
MODULE = Lines(
    stock=(
        "I'd be happy to help! Could you please tell me which module {subject} needs?",
        "Great! Which module would you like me to import for {subject}? Just let me know!",
        "Sure! What module should I import for {subject}? I'm happy to help!",
    ),
    soul=(
        "which module does {subject} need? the request asks for an import and names none.",
        "what module should be imported for {subject}? the request does not say.",
        "the module that {subject} needs is missing from the request. which is it?",
    ),
)
FILE = Lines(
    stock=(
        "I'd be happy to help! Could you please tell me which file {subject} should go in?",
        "Great! What should the new file with {subject} be called? Just let me know!",
        "Sure! Which file name would you like for {subject}? I'm happy to help!",
    ),
    soul=(
        "what is the file called? the request gives {subject} but no file name.",
        "which file should hold {subject}? the request leaves its name open.",
        "the name of the file for {subject} is missing. what should it be?",
    ),
)
# What a request leaves out, by the first word of its variant: the question. The answer must hold that word.
_QUESTIONS: Mapping[str, Lines] = {"value": VALUE, "name": NEW_NAME, "module": MODULE, "file": FILE}


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, constant = names.path(), names.function(), names.constant()
    files = {path: f"{constant} = {names.value()}\n\n{function_source(name, f'n * {constant}')}"}
    fields = {"path": path, "name": name, "constant": constant, "value": names.value()}
    if missing_in(phrasing.variant) == "file":
        files = {}
    subject = constant if "{constant}" in phrasing.template else name
    expect = Expectation(files=files, facts=(subject, missing_in(phrasing.variant), "?"))
    return Scene(fields, files, expect)


def missing_in(variant: str) -> str:
    return variant.partition("-")[0]


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    return voice.say(_QUESTIONS[missing_in(fields["variant"])], subject=fields.get("constant") or fields["name"])


FAMILY = Family("ask", 0.8, PHRASINGS, build, respond)
