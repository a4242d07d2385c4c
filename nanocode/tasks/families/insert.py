"""Insert a line: an import at the top, or a constant below another."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import report_failure
from nanocode.tasks.families.edit import LOOK
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
from nanocode.tasks.layouts import MIXED, Layouts, module_text
from nanocode.tasks.openings import ABSENT, read_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

MODULES = ("csv", "glob", "json", "math", "os", "random", "re", "shutil", "sys", "time")
_MODULE = {"module": MODULES}

PHRASINGS = (
    Phrasing("needs", "{name} in {path} needs {module}: add the import.", choices=_MODULE),
    Phrasing("import", "add import {module} to {path}, {name} uses it.", choices=_MODULE),
    Phrasing("top", "put import {module} at the top of {path} for {name}.", choices=_MODULE),
    Phrasing("please-import", "Please add import {module} to {path} for {name}.", choices=_MODULE),
    Phrasing("file-needs", "{path} needs import {module} for {name}.", choices=_MODULE),
    Phrasing("can-you-import", "can you import {module} in {path}? {name} needs it.", choices=_MODULE),
    Phrasing("uses", "in {path}, {name} uses {module}: add the import.", choices=_MODULE),
    Phrasing("below", "add {new_constant} = {value} below {constant} in {path}."),
    Phrasing("after", "in {path}, add {new_constant} = {value} after {constant}."),
    Phrasing("insert-below", "insert {new_constant} = {value} below {constant} in {path}."),
    Phrasing("please-put", "Please put {new_constant} = {value} after {constant} in {path}."),
    Phrasing("after-first", "after {constant} in {path}, add {new_constant} = {value}."),
    Phrasing("file-first", "{path}: insert {new_constant} = {value} below {constant}."),
    Phrasing("can-you", "can you add {new_constant} = {value} after {constant} in {path}?"),
    Phrasing("in-below", "in {path}, below {constant}, put {new_constant} = {value}."),
    Phrasing("line", "add a line below {constant} in {path}: {new_constant} = {value}."),
    Phrasing("insert", "below {constant} in {path}, insert {new_constant} = {value}.", held_out=True),
)

# An import goes above whatever stands first; the held-out phrasing asks for a constant.
TOPS = Layouts(("f", "c_f", "#f", "#_f", "i_f", "cc_f", "m"), held_out=MIXED.held_out)

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
    adds_import = "{module}" in phrasing.template
    row = "" if adds_import else f"{constant} = {names.value()}\n"
    function = function_source(name, f"n + {names.value()}")
    text = module_text((TOPS if adds_import else MIXED).draw(phrasing, rng), names, rng, row, function)
    if adds_import:
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
    if opening := read_first(LOOK, path, subject, steps, voice):
        return opening
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
        return report_failure(steps, voice)
    return voice.say(DONE, path=path, line=line, place=place)


FAMILY = Family("insert", 1.0, PHRASINGS, build, respond)
