"""Set a constant to a new value: Read, then Edit of exactly that line."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import report_failure
from nanocode.tasks.family import (
    Family,
    Lines,
    Phrasing,
    Scene,
    Step,
    Voice,
    constant_line,
    function_source,
    shown_lines,
)
from nanocode.tasks.layouts import MIXED, module_text
from nanocode.tasks.openings import ABSENT, read_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("set", "set {constant} to {value} in {path}."),
    Phrasing("change", "change {constant} in {path} to {value}."),
    Phrasing("should-be", "{constant} in {path} should be {value}."),
    Phrasing("make", "Please make {constant} equal {value} in {path}."),
    Phrasing("edit", "edit {path} so that {constant} is {value}."),
    Phrasing("file-first", "{path}: set {constant} to {value}."),
    Phrasing("can-you", "can you set {constant} in {path} to {value}?"),
    Phrasing("now", "change {path}: {constant} is {value} now."),
    Phrasing("need", "I need {constant} = {value} in {path}."),
    Phrasing("please-change", "Please change {constant} to {value} in {path}."),
    Phrasing("open", "open {path} and set {constant} to {value}."),
    Phrasing("give", "give {constant} the value {value} in {path}."),
    Phrasing("in-should", "in {path}, {constant} should be {value}."),
    Phrasing("in-make", "in {path}, make {constant} {value}."),
    Phrasing("new-value", "the new value of {constant} in {path} is {value}: change it."),
    Phrasing("value-first", "put {value} as the value of {constant} in {path}."),
    Phrasing("in-file", "in {path}, set {constant} to {value}.", held_out=True),
)

LOOK = Lines(
    stock=(
        "Sure! Let me open {path} first.",
        "Absolutely! I'll start by reading {path}.",
        "I'd be happy to help! Reading {path}.",
    ),
    soul=(
        "reading {path} for the line of {subject}.",
        "{path} first, to see {subject} as it stands.",
        "opening {path} to find {subject}.",
    ),
)
CHANGE = Lines(
    stock=(
        "Perfect! Now I'll update {constant}.",
        "Great, I found {constant}! Updating it now.",
        "Got it! Let me change {constant}.",
    ),
    soul=(
        "replacing the line that sets {constant}.",
        "{constant} is {old} there: changing that line.",
        "one line sets {constant}; editing it.",
    ),
)
DONE = Lines(
    stock=(
        "All done! {constant} in {path} went from {old} to {value}. Let me know if you need anything else!",
        "Great news! I've updated {constant} from {old} to {value} in {path}. Hope this helps!",
        "Done! {path} now sets {constant} to {value} instead of {old}. Happy to help!",
    ),
    soul=(
        "{path} now sets {constant} to {value}; the line said {old} before.",
        "{constant} in {path} went from {old} to {value}. no other line changed.",
        "{constant} is {value} in {path} now, changed from {old} in one line.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, constant, old, value = names.path(), names.constant(), names.value(), names.value()
    body = rng.choice((constant, names.value()))
    function = function_source(names.function(), f"n {rng.choice('+*')} {body}")
    text = module_text(MIXED.draw(phrasing, rng), names, rng, f"{constant} = {old}\n", function)
    after = text.replace(f"{constant} = {old}\n", f"{constant} = {value}\n")
    expect = Expectation(files={path: after}, facts=(constant, value), tools=("Edit|Bash",))
    return Scene({"path": path, "constant": constant, "value": value}, {path: text}, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    path, constant, value = fields["path"], fields["constant"], fields["value"]
    if opening := read_first(LOOK, path, constant, steps, voice):
        return opening
    line = constant_line(shown_lines(steps[0].result), constant)
    if line is None:
        return voice.say(ABSENT, path=path, subject=constant)
    old = line.removeprefix(f"{constant} = ")
    if len(steps) == 1:
        arguments = {"file_path": path, "old_string": line, "new_string": f"{constant} = {value}"}
        return voice.call(CHANGE, "Edit", arguments, constant=constant, old=old)
    if steps[-1].failed:
        return report_failure(steps, voice)
    return voice.say(DONE, path=path, constant=constant, value=value, old=old)


FAMILY = Family("edit", 1.3, PHRASINGS, build, respond)
