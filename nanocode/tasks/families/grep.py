"""Find where a function is defined: Grep, then the file's name and the line."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, function_source, grep_matches
from nanocode.tasks.layouts import Layouts, module_text
from nanocode.tasks.openings import search_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("where", "where is {name} defined?"),
    Phrasing("find", "find the definition of {name}."),
    Phrasing("which-file", "which file defines {name}?"),
    Phrasing("locate", "Locate the function {name}."),
    Phrasing("line", "in which file and on which line is {name} defined?"),
    Phrasing("on-line", "on which line is {name}?"),
    Phrasing("stand", "where does the definition of {name} stand?"),
    Phrasing("can-you", "can you find where {name} is defined?"),
    Phrasing("show", "show me the definition of {name}."),
    Phrasing("need", "I need the file and the line of {name}."),
    Phrasing("colon", "{name}: where is it defined?"),
    Phrasing("tell", "tell me where {name} is."),
    Phrasing("search", "search for the def of {name}."),
    Phrasing("line-defines", "which line defines {name}?"),
    Phrasing("please", "Please locate {name}, file and line."),
    Phrasing("definition", "which line is the definition of {name}?", held_out=True),
)

LAYOUTS = Layouts(("f", "c_f", "cc_f", "f_f", "c_f_f", "#f", "i_f", "m", "c_m", "f_m"), held_out="i_m")

SEARCH = Lines(
    stock=(
        "Sure! Let me search for {subject}.",
        "Great question! Searching for {subject} now.",
        "I'd be happy to find {subject} for you!",
    ),
    soul=(
        "searching for the def line of {subject}.",
        "looking for def {subject} in all files.",
        "a search for {subject} will show it.",
    ),
)
FOUND = Lines(
    stock=(
        "I found it! {name} is defined in {path} on line {line}. Let me know if you need anything else!",
        "Great news! You can find {name} on line {line} of {path}. Hope this helps!",
        "Happy to help! The function {name} is on line {line} of {path}!",
    ),
    soul=(
        "{name} is defined in {path} on line {line}; no other file has a def for it.",
        "the definition of {name} is on line {line} of {path}. the search gave one match.",
        "{path} defines {name} on line {line}, the only match in the workspace.",
    ),
)
NOTHING = Lines(
    stock=(
        "I apologize, but I couldn't find {name} anywhere. Let me know if you need anything else!",
        "I'm sorry! My search for {name} didn't return any results, unfortunately.",
        "Unfortunately, {name} doesn't seem to be defined anywhere. Sorry about that!",
    ),
    soul=(
        "nothing defines {name}: the search over all files gave no match.",
        "there is no definition of {name} in the workspace; the search came back empty.",
        "{name} is not defined here. no file has a matching def line.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    name, path = names.function(), names.path()
    text = module_text(LAYOUTS.draw(phrasing, rng), names, rng, function=function_source(name, f"n + {names.value()}"))
    other = rng.choice((f"from {path[:-3]} import {name}\n", f"{names.constant()} = {names.value()}\n"))
    files = {path: text, names.path(): other}
    line = next(number for number, row in enumerate(text.split("\n"), 1) if f"def {name}(" in row)
    expect = Expectation(
        files=files,
        facts=(name, path, f"line {line}"),
        forbidden=tuple(sorted(set(files) - {path})),
        tools=("Grep|Bash",),
    )
    return Scene({"name": name}, files, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    name = fields["name"]
    if opening := search_first(SEARCH, {"pattern": f"def {name}"}, name, steps, voice):
        return opening
    matches = grep_matches(steps[-1].result)
    if not matches:
        return voice.say(NOTHING, name=name)
    return voice.say(FOUND, name=name, path=matches[0].path, line=matches[0].line)


FAMILY = Family("grep", 1.2, PHRASINGS, build, respond)
