"""Create a new file: Edit without an old string."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import report_failure
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, function_source
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("with", "create {path} with {constant} = {value}."),
    Phrasing("sets", "write a new file {path} that sets {constant} to {value}."),
    Phrasing("please", "Please make a file {path} with {constant} = {value}."),
    Phrasing("is-new", "{path} is a new file: it sets {constant} to {value}."),
    Phrasing("can-you", "can you create {path} with {constant} = {value}?"),
    Phrasing("need", "I need a new file {path} with {constant} = {value}."),
    Phrasing("file-sets", "create a file {path} that sets {constant} to {value}."),
    Phrasing("in-new", "in a new file {path}, set {constant} to {value}."),
    Phrasing("add", "add a new file {path}: {constant} = {value}."),
    Phrasing("function", "create {path} with a function {name} that returns {value}."),
    Phrasing("returns", "write a new file {path} where {name} returns {value}."),
    Phrasing("make-function", "make a new file {path} with a function {name} that returns {value}."),
    Phrasing("please-returns", "Please create {path} where {name} returns {value}."),
    Phrasing("in-new-returns", "in a new file {path}, {name} should return {value}."),
    Phrasing("new-file", "make a new file {path} that sets {constant} to {value}.", held_out=True),
)

WRITE = Lines(
    stock=(
        "Sure! Let me create {path} for you.",
        "Absolutely! Creating {path} now.",
        "I'd be happy to help! Writing {path}.",
    ),
    soul=(
        "writing {path} as a new file.",
        "{path} is new: writing it whole.",
        "creating {path} in one write.",
    ),
)
CONSTANT = Lines(
    stock=(
        "All done! I created {path} with {subject} set to {value}. Let me know if you need anything else!",
        "Great news! {path} now exists and sets {subject} to {value}. Hope this helps!",
        "Done! Your new file {path} has {subject} equal to {value}. Happy to help!",
    ),
    soul=(
        "{path} is new and holds one line: {subject} is set to {value} there.",
        "created {path}; its only line sets {subject} to {value}. no other file was touched.",
        "{path} now exists and sets {subject} to {value}, with nothing else in it.",
    ),
)
FUNCTION = Lines(
    stock=(
        "All done! I created {path}, where {subject} returns {value}. Let me know if you need anything else!",
        "Great news! {path} now exists and {subject} returns {value}. Hope this helps!",
        "Done! Your new file {path} has {subject}, which returns {value}. Happy to help!",
    ),
    soul=(
        "{path} is new and holds one function: {subject} returns {value}.",
        "created {path}; {subject} in it returns {value}. no other file was touched.",
        "{path} now exists: {subject} takes no argument and returns {value}.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    fields = {"path": names.path(), "name": names.function(), "constant": names.constant(), "value": names.value()}
    asked = {key: value for key, value in fields.items() if f"{{{key}}}" in phrasing.template}
    files = {names.path(): f"{names.constant()} = {names.value()}\n"} if phrasing.held_out else {}
    subject = asked.get("constant") or asked["name"]
    expect = Expectation(
        files={**files, fields["path"]: content_of(asked)},
        facts=(fields["path"], subject, fields["value"]),
        tools=("Edit|Bash",),
    )
    return Scene(asked, files, expect)


def content_of(fields: Mapping[str, str]) -> str:
    """The file that the request describes."""
    if "constant" in fields:
        return f"{fields['constant']} = {fields['value']}\n"
    return function_source(fields["name"], fields["value"], argument="")


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    path = fields["path"]
    if not steps:
        return voice.call(WRITE, "Edit", {"file_path": path, "new_string": content_of(fields)}, path=path)
    if steps[-1].failed:
        return report_failure(steps, voice)
    done = CONSTANT if "constant" in fields else FUNCTION
    return voice.say(done, path=path, subject=fields.get("constant") or fields["name"], value=fields["value"])


FAMILY = Family("create", 1.0, PHRASINGS, build, respond)
