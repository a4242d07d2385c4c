"""Insert a line: an import at the top, or a constant below another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.families.edit import LOOK
from nanocode.tasks.families.read import ABSENT, UNREADABLE
from nanocode.tasks.family import (
    Family,
    Lines,
    Phrasing,
    Scene,
    Step,
    Voice,
    constant_line,
    function_source,
    report_failure,
    shown_lines,
)
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

MODULES = ("csv", "glob", "json", "math", "os", "random", "re", "shutil", "sys", "time")
_MODULE = {"module": MODULES}

PHRASINGS = (
    Phrasing("needs", "{name} in {path} needs {module}: add the import.", choices=_MODULE),
    Phrasing("import", "add import {module} to {path}, {name} uses it.", choices=_MODULE),
    Phrasing("top", "put import {module} at the top of {path} for {name}.", choices=_MODULE),
    Phrasing("below", "add {new_constant} = {value} below {constant} in {path}."),
    Phrasing("after", "in {path}, add {new_constant} = {value} after {constant}."),
    Phrasing("insert", "below {constant} in {path}, insert {new_constant} = {value}.", held_out=True),
)

ADD = Lines(
    stock=(
        "Perfect! Now I'll add the line.",
        "Great! Adding {line} now.",
        "Got it! Let me add {line}.",
    ),
    soul=(
        "adding {line} as its own line.",
        "one new line: {line}.",
        "putting {line} {place}.",
    ),
)
DONE = Lines(
    stock=(
        "All done! I added {line} to {path} {place}. Let me know if you need anything else!",
        "Great news! {path} now has {line} {place}. Hope this helps!",
        "Done! I've inserted {line} into {path} {place}. Happy to help!",
    ),
    soul=(
        "{path} now has {line} {place}; the other lines are as they were.",
        "added {line} to {path}, {place}. nothing else moved.",
        "{line} stands in {path} {place}, and no other line changed.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, constant, new_constant = names.path(), names.function(), names.constant(), names.constant()
    value, module = names.value(), rng.choice(MODULES)
    function = function_source(name, f"n + {names.value()}")
    row = f"{constant} = {names.value()}\n"
    if phrasing.held_out:
        text = f"{function}\n{row}"
    elif "{module}" in phrasing.template:
        text = function if rng.random() < 0.4 else f"{row}\n{function}"
    else:
        rows = [row, f"{names.constant()} = {names.value()}\n"]
        rng.shuffle(rows)
        text = "".join(rows)
    if "{module}" in phrasing.template:
        line, after = f"import {module}", f"import {module}\n{text}"
    else:
        line = f"{new_constant} = {value}"
        after = text.replace(row, f"{row}{line}\n")
    fields = {"path": path, "name": name, "constant": constant, "new_constant": new_constant}
    expect = Expectation(files={path: after}, facts=(path, line), tools=("Edit|Bash",))
    return Scene({**fields, "value": value, "module": module}, {path: text}, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    path = fields["path"]
    subject = fields["name"] if "module" in fields else fields["constant"]
    if not steps:
        return voice.call(LOOK, "Read", {"file_path": path}, path=path, constant=subject)
    if steps[0].failed:
        return voice.say(UNREADABLE, path=path, subject=subject)
    lines = shown_lines(steps[0].result)
    anchor = lines[0] if "module" in fields and lines else constant_line(lines, subject)
    if anchor is None:
        return voice.say(ABSENT, path=path, subject=subject)
    if "module" in fields:
        line, place = f"import {fields['module']}", "at the top"
        both = f"{line}\n{anchor}"
    else:
        line, place = f"{fields['new_constant']} = {fields['value']}", f"below {subject}"
        both = f"{anchor}\n{line}"
    if len(steps) == 1:
        return voice.call(
            ADD, "Edit", {"file_path": path, "old_string": anchor, "new_string": both}, line=line, place=place
        )
    if steps[-1].failed:
        return report_failure(steps[-1], voice)
    return voice.say(DONE, path=path, line=line, place=place)


FAMILY = Family("insert", 1.0, PHRASINGS, build, respond)
