"""Fix a bug so that a real test passes: Read, Edit, Bash, report. The function's own comment says what it should do."""

from __future__ import annotations

import operator
import random
import re
from collections.abc import Callable, Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import reason_of, report_failure
from nanocode.tasks.families.edit import LOOK
from nanocode.tasks.families.read import returned_by
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, shown_lines
from nanocode.tasks.openings import ABSENT, read_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("fails", "{test} fails. fix {name} in {path}."),
    Phrasing("so-that", "fix {name} in {path} so that {test} passes."),
    Phrasing("bug", "the bug is in {name} in {path}. make {test} pass."),
    Phrasing("wrong", "{name} in {path} is wrong: make {test} pass."),
    Phrasing("please", "Please fix {name} in {path}, {test} fails."),
    Phrasing("fix-first", "fix {name} in {path}: {test} fails."),
    Phrasing("should", "{test} should pass. fix {name} in {path}."),
    Phrasing("pass-bug", "make {test} pass. the bug is in {name} in {path}."),
    Phrasing("can-you", "can you fix {name} in {path}? {test} fails."),
    Phrasing("in-file", "in {path}, {name} is wrong: fix it and run {test}."),
    Phrasing("has-bug", "{path} has a bug in {name}: make {test} pass."),
    Phrasing("not-pass", "{test} does not pass: {name} in {path} is wrong."),
    Phrasing("please-pass", "Please make {test} pass, the bug is in {name} in {path}."),
    Phrasing("find", "find the bug in {name} in {path}, {test} fails."),
    Phrasing("make-pass", "make {test} pass: fix {name} in {path}.", held_out=True),
)
# Where the intent stands: in the body, or above the def.
INTENTS = ("  # {}", '  """{}"""', "  # returns {}", "# {}")
HELD_OUT_INTENT = '  """returns {}"""'
SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}
_APPLY: Mapping[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
PASSED = "ok"

CHANGE = Lines(
    stock=(
        "I found the bug! Let me fix it.",
        "Great, I see the issue! Fixing it now.",
        "Got it! I'll fix the return line.",
    ),
    soul=(
        "the return line differs from the intent.",
        "the intent differs: fixing the return line.",
        "the return line is wrong; replacing it.",
    ),
)
RUN = Lines(
    stock=(
        "Perfect! Now let me run {test}.",
        "Great! Let's run the test now!",
        "Awesome! Running {test} to verify.",
    ),
    soul=(
        "running {test} to see it pass.",
        "now the test: {test}.",
        "checking the change with {test}.",
    ),
)
DONE = Lines(
    stock=(
        "Great news! {name} in {path} now returns {right}, not {wrong}, and {test} passes!",
        "All done! I fixed {name} in {path}: {wrong} is now {right}. {test} passes!",
        "Success! {name} returns {right} in {path} now, and {test} passes!",
    ),
    soul=(
        "{name} in {path} now returns {right}, not {wrong}; {test} prints ok.",
        "{path}: {name} returned {wrong}, now {right}. {test} passes.",
        "{name} returns {right} in {path} now, and {test} prints ok.",
    ),
)
STILL = Lines(
    stock=(
        "I apologize! I changed {name} in {path}, but {test} still fails: {output}.",
        "Unfortunately, {test} still fails after my change to {name}: {output}. I'm sorry!",
    ),
    soul=(
        "{name} in {path} is changed, but {test} still fails: {output}.",
        "{test} does not pass yet: {output}. the change to {name} stays.",
    ),
)

UNTESTED = Lines(
    stock=(
        "I'm sorry! I changed {name} in {path}, but {test} was not run: {reason}.",
        "I apologize! {test} was not run: {reason}. The change to {name} in {path} stays.",
    ),
    soul=(
        "{name} in {path} is changed, but {test} was not run: {reason}.",
        "{reason}, so {test} was not run; the change to {name} in {path} stays.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, number = names.path(), names.function(), names.value()
    word = rng.choice(sorted(SYMBOLS))
    right = f"n {SYMBOLS[word]} {number}"
    wrong = rng.choice([f"n {symbol} {number}" for symbol in SYMBOLS.values()] + [f"{right[:3]} {names.value()}"] * 3)
    argument = _telling_argument(right, wrong, rng)
    if argument is None:
        return build(phrasing, names, rng)
    intent = (HELD_OUT_INTENT if phrasing.held_out else rng.choice(INTENTS)).format(f"n {word} {number}")
    before, after = (_function(name, intent, body) for body in (wrong, right))
    want = _evaluate(right, argument)
    test = f"test_{path}"
    check = (
        f"from {path.removesuffix('.py')} import {name}\n\n"
        f"got = {name}({argument})\n"
        f'print("{PASSED}" if got == {want} else f"fail: got {{got}}, want {want}")\n'
        f"raise SystemExit(got != {want})\n"
    )
    expect = Expectation(
        files={path: after, test: check},
        facts=(name, path, right),
        tools=("Edit|Bash", "Bash"),
        last_bash=PASSED,
    )
    return Scene({"path": path, "name": name, "test": test}, {path: before, test: check}, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    path, name, test = fields["path"], fields["name"], fields["test"]
    if opening := read_first(LOOK, path, name, steps, voice):
        return opening
    lines = shown_lines(steps[0].result)
    wrong, right = returned_by(lines, name), intended(lines, name)
    if wrong is None or right is None:
        return voice.say(ABSENT, path=path, subject=name)
    if len(steps) == 1:
        arguments = {"file_path": path, "old_string": f"return {wrong}", "new_string": f"return {right}"}
        return voice.call(CHANGE, "Edit", arguments)
    if steps[1].failed:
        return report_failure(steps[:2], voice)
    if len(steps) == 2:
        return voice.call(RUN, "Bash", {"command": f"python {test}"}, test=test)
    facts = {"name": name, "path": path, "test": test}
    if steps[-1].failed:
        return voice.say(UNTESTED, **facts, reason=reason_of(steps[-1]))
    output = steps[-1].result.strip().split("\n")[0]
    if output != PASSED:
        return voice.say(STILL, **facts, output=output)
    return voice.say(DONE, **facts, right=right, wrong=wrong)


def _function(name: str, intent: str, body: str) -> str:
    head, inside = f"def {name}(n):", intent.startswith(" ")
    lines = (head, f"  {intent}") if inside else (intent, head)
    return "\n".join((*lines, f"    return {body}")) + "\n"


def intended(lines: Sequence[str], name: str) -> str | None:
    """The expression that the comment or docstring under ``def name(`` describes."""
    start = next((index for index, line in enumerate(lines) if line.startswith(f"def {name}(")), len(lines))
    for line in lines[max(start - 1, 0) : start + 2]:
        found = re.search(r"n (plus|minus|times) (\d+)", line)
        if found:
            return f"n {SYMBOLS[found.group(1)]} {found.group(2)}"
    return None


def _evaluate(expression: str, argument: int) -> int:
    _, symbol, number = expression.split()
    return _APPLY[symbol](argument, int(number))


def _telling_argument(right: str, wrong: str, rng: random.Random) -> int | None:
    """A small argument for which the two expressions differ, if there is one."""
    telling = [value for value in range(1, 10) if _evaluate(right, value) != _evaluate(wrong, value)]
    return rng.choice(telling) if telling else None


FAMILY = Family("fix", 1.0, PHRASINGS, build, respond)
