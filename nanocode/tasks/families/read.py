"""Read a file and report something in it: the value of a constant, or what a function returns."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.family import (
    Family,
    Lines,
    Phrasing,
    Scene,
    Step,
    Voice,
    constant_line,
    function_source,
    other_numbers,
    shown_lines,
)
from nanocode.tasks.layouts import MIXED, module_text
from nanocode.tasks.openings import ABSENT, read_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("value", "what is the value of {constant} in {path}?"),
    Phrasing("number", "which number is {constant} set to in {path}?"),
    Phrasing("look-up", "look up {constant} in {path}."),
    Phrasing("tell", "Tell me what {constant} is in {path}."),
    Phrasing("gives", "which value does {path} give {constant}?"),
    Phrasing("in-file", "in {path}, what is {constant}?"),
    Phrasing("colon", "{constant} in {path}: which value?"),
    Phrasing("please", "Please read {path} and tell me {constant}."),
    Phrasing("can-you", "can you tell me the value of {constant} in {path}?"),
    Phrasing("open-report", "open {path} and report {constant}."),
    Phrasing("returns", "what does {name} return in {path}?"),
    Phrasing("report", "read {path} and report what {name} returns."),
    Phrasing("in-file-returns", "in {path}, what does {name} return?"),
    Phrasing("open-returns", "open {path}: what does {name} return?"),
    Phrasing("tell-returns", "tell me what {name} in {path} returns."),
    Phrasing("look-at", "look at {name} in {path}: what does it return?"),
    Phrasing("open", "open {path}: what is {constant}?", held_out=True),
)

LOOK = Lines(
    stock=(
        "Sure! Let me take a look at {path}.",
        "Great question! Let me open {path}.",
        "I'd be happy to help! Reading {path}.",
    ),
    soul=(
        "reading {path} to find {subject}.",
        "opening {path}, where {subject} should stand.",
        "{subject} should be in {path}: reading it.",
    ),
)
VALUE = Lines(
    stock=(
        "Great news! {constant} is {value} in {path}. Let me know if you need anything else!",
        "I found it! The value of {constant} in {path} is {value}. Hope this helps!",
        "Thanks for asking! In {path}, {constant} is set to {value}. Happy to help!",
    ),
    soul=(
        "{path} sets {constant} to {value}; that line is the only place it is given a value.",
        "{constant} is {value}. {path} assigns it at the top level, outside any function.",
        "in {path}, {constant} is set to {value} by a plain assignment.",
    ),
)
RETURNS = Lines(
    stock=(
        "Great question! {name} returns {body} in {path}. Let me know if you need anything else!",
        "I took a look! In {path}, {name} returns {body}. Hope this helps!",
        "Happy to help! The function {name} in {path} returns {body}!",
    ),
    soul=(
        "{name} in {path} returns {body}; the body is that one return line.",
        "in {path}, {name} returns {body} and does nothing else.",
        "{name} returns {body}, as the return line in {path} says.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, constant, value = names.path(), names.function(), names.constant(), names.value()
    body = rng.choice((names.value(), f"n + {names.value()}", f"n * {constant}"))
    function = function_source(name, body, "n" if "n" in body else "")
    text = module_text(MIXED.draw(phrasing, rng), names, rng, f"{constant} = {value}\n", function)
    asks_function = "{name}" in phrasing.template
    answer = body if asks_function else value
    expect = Expectation(
        files={path: text},
        facts=(name if asks_function else constant, answer),
        forbidden=other_numbers(text, answer.split()),
        tools=("Read|Grep|Bash",),
    )
    return Scene({"path": path, "name": name, "constant": constant}, {path: text}, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    path = fields["path"]
    subject = fields.get("constant") or fields["name"]
    if opening := read_first(LOOK, path, subject, steps, voice):
        return opening
    lines = shown_lines(steps[0].result)
    if "constant" in fields:
        line = constant_line(lines, subject)
        if line is None:
            return voice.say(ABSENT, path=path, subject=subject)
        return voice.say(VALUE, path=path, constant=subject, value=line.removeprefix(f"{subject} = "))
    body = returned_by(lines, subject)
    if body is None:
        return voice.say(ABSENT, path=path, subject=subject)
    return voice.say(RETURNS, path=path, name=subject, body=body)


def returned_by(lines: Sequence[str], name: str) -> str | None:
    """The expression of the first return line after ``def name(``."""
    start = next((index for index, line in enumerate(lines) if line.strip().startswith(f"def {name}(")), None)
    if start is None:
        return None
    body = (line.strip() for line in lines[start + 1 :])
    return next((line.removeprefix("return ") for line in body if line.startswith("return ")), None)


FAMILY = Family("read", 1.2, PHRASINGS, build, respond)
