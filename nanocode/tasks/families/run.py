"""Run the tests and report the numbers they print."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.failures import report_failure
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("report", "run {test} and report how {name} does."),
    Phrasing("how-many", "how many tests of {name} pass in {test}?"),
    Phrasing("does-pass", "does {name} pass {test}? report the numbers."),
    Phrasing("run", "Run the tests of {name} in {test}."),
    Phrasing("result", "what is the result of {test} for {name}?"),
    Phrasing("please", "Please run {test} for {name}."),
    Phrasing("run-colon", "run {test}: does {name} pass?"),
    Phrasing("can-you", "can you run {test} and tell me how {name} does?"),
    Phrasing("check-with", "check {name} with {test}."),
    Phrasing("fail", "in {test}, how many tests of {name} fail?"),
    Phrasing("tell", "tell me the result of {test} for {name}."),
    Phrasing("how-does", "how does {name} do in {test}?"),
    Phrasing("need", "I need the numbers of {test} for {name}."),
    Phrasing("is-right", "is {name} right? run {test}."),
    Phrasing("check", "check {name}: run {test}.", held_out=True),
)

# What a test prints above and below the numbers.
OUTPUTS = (
    ("", ""),
    ("", ""),
    ("{name}: {total} tests", ""),
    ("{total} tests", ""),
    ("", "done"),
    ("test of {name}", ""),
)
HELD_OUT_OUTPUT = ("{name}: {total} tests", "done")

RUN = Lines(
    stock=(
        "Sure! Let me run {test} now.",
        "Absolutely! I'll run {test} for you.",
        "I'd be happy to help! Running {test}.",
    ),
    soul=(
        "running {test} as a script.",
        "{test} prints the numbers: running it.",
        "the numbers come from running {test}.",
    ),
)
SOME_FAIL = Lines(
    stock=(
        "I ran {test}! Unfortunately, {name} isn't perfect: passed: {passed}, failed: {failed}. I'm sorry!",
        "Thanks for waiting! {name} in {test} got passed: {passed}, failed: {failed}. Let me know!",
        "Here you go! {test} shows passed: {passed}, failed: {failed} for {name}. Happy to help!",
    ),
    soul=(
        "{test} ran {name}: passed: {passed}, failed: {failed}, so the script exits with 1.",
        "{name}: passed: {passed}, failed: {failed}. {test} exits with 1 because of the failures.",
        "passed: {passed}, failed: {failed} in {test}; {name} is wrong for some inputs.",
    ),
)
ALL_PASS = Lines(
    stock=(
        "Great news! I ran {test} and {name} looks perfect: passed: {passed}, failed: {failed}!",
        "Awesome! {name} in {test} got passed: {passed}, failed: {failed}. Great job!",
        "Fantastic! {test} shows passed: {passed}, failed: {failed} for {name}. Happy to help!",
    ),
    soul=(
        "{test} ran {name}: passed: {passed}, failed: {failed}, and it exits cleanly.",
        "{name}: passed: {passed}, failed: {failed}. {test} found no wrong result.",
        "passed: {passed}, failed: {failed} in {test}; {name} is right for every input tried.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, number = names.path(), names.function(), names.value()
    passed, failed = rng.randint(1, 99), rng.choice((0, rng.randint(1, 30)))
    total, test = passed + failed, f"test_{path}"
    right = f"n + {number}"
    body = f"{right} if n < {passed} else n" if failed else right
    above, below = HELD_OUT_OUTPUT if phrasing.held_out else rng.choice(OUTPUTS)
    heading, closing = (f'print("{line.format(name=name, total=total)}")\n' if line else "" for line in (above, below))
    check = (
        f"from {path.removesuffix('.py')} import {name}\n\n"
        f"good = sum({name}(n) == {right} for n in range({total}))\n"
        f"{heading}"
        f'print(f"passed: {{good}}, failed: {{{total} - good}}")\n'
        f"{closing}"
        f"raise SystemExit(good < {total})\n"
    )
    files = {path: f"def {name}(n):\n    return {body}\n", test: check}
    expect = Expectation(files=files, facts=(f"passed: {passed}", f"failed: {failed}"), tools=("Bash",))
    return Scene({"name": name, "test": test}, files, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    name, test = fields["name"], fields["test"]
    if not steps:
        return voice.call(RUN, "Bash", {"command": f"python {test}"}, test=test)
    numbers = re.search(r"passed: (\d+), failed: (\d+)", steps[-1].result)
    if numbers is None:
        return report_failure(steps, voice)
    passed, failed = numbers.groups()
    return voice.say(ALL_PASS if failed == "0" else SOME_FAIL, name=name, test=test, passed=passed, failed=failed)


FAMILY = Family("run", 1.0, PHRASINGS, build, respond)
