"""Count matches: Grep, then the number of lines it gave. Small numbers, for a small model counts badly."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, function_source, grep_matches
from nanocode.tasks.layouts import Layouts
from nanocode.tasks.openings import search_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("mention", "how many lines mention {name}?"),
    Phrasing("occur", "on how many lines does {name} occur?"),
    Phrasing("count", "count the lines with {name}."),
    Phrasing("have", "how many lines have {name}?"),
    Phrasing("colon", "count {name}: on how many lines is it?"),
    Phrasing("please", "Please count the lines that use {name}."),
    Phrasing("can-you", "can you count the lines with {name} in them?"),
    Phrasing("is-on", "{name} is on how many lines?"),
    Phrasing("count-use", "count how many lines use {name}."),
    Phrasing("use", "how many lines of {path} use {constant}?"),
    Phrasing("in-file", "Count the lines of {path} that have {constant}."),
    Phrasing("in-use", "in {path}, how many lines use {constant}?"),
    Phrasing("contain-file", "how many lines contain {constant} in {path}?"),
    Phrasing("tell", "tell me how many lines of {path} mention {constant}."),
    Phrasing("contain", "count how many lines contain {name}.", held_out=True),
)
MOST_LINES = 4
VARIABLES = ("a", "b", "c", "d")
# D the definition, x the lines that use it, o a line that does not, i an import.
LAYOUTS = Layouts(("Dx", "D_x", "iDx", "Dox", "xo", "ox"), held_out="ix")

SEARCH = Lines(
    stock=(
        "Sure! Let me search for {subject}.",
        "Great question! Let me count {subject}.",
        "I'd be happy to help! Searching for {subject}.",
    ),
    soul=(
        "searching for {subject} to count its lines.",
        "each line with {subject} will be a match.",
        "a search lists the lines with {subject}.",
    ),
)
COUNTED = Lines(
    stock=(
        "Great question! I found {subject} on {count}. Let me know if you need anything else!",
        "I counted them! {subject} appears on {count} in total. Hope this helps!",
        "Happy to help! There's a total of {count} with {subject}!",
    ),
    soul=(
        "{subject} is on {count}: that is how many matches the search gave.",
        "{count} with {subject}, counted from the matches of one search.",
        "the search for {subject} gave {count}, and nothing was changed.",
    ),
)
NONE = Lines(
    stock=(
        "I looked everywhere! {subject} appears on 0 lines. Hope this helps!",
        "Unfortunately, I found {subject} on 0 lines. I'm sorry about that!",
    ),
    soul=(
        "{subject} is on 0 lines: the search gave no match.",
        "0 lines with {subject}; the search came back empty.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, constant = names.path(), names.function(), names.constant()
    asks_constant = "{constant}" in phrasing.template
    subject = constant if asks_constant else name
    count, layout = rng.randint(1, MOST_LINES), LAYOUTS.draw(phrasing, rng)
    calls = [f"{letter} = {subject}" + ("" if asks_constant else f"({names.value()})") for letter in VARIABLES]
    definition = f"{constant} = {names.value()}\n" if asks_constant else function_source(name, f"n * {names.value()}")
    blocks = {
        "D": definition,
        "x": "".join(f"{call}\n" for call in calls[: count - layout.count("D")]),
        "o": f"{names.constant()} = {names.value()}\n",
        "i": "import os\n",
        "_": "\n",
    }
    files = {path: "".join(blocks[letter] for letter in layout)}
    expect = Expectation(files=files, facts=(subject, lines_in_words(count)), tools=("Grep|Read|Bash",))
    return Scene({"path": path, "name": name, "constant": constant}, files, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    subject = fields.get("constant") or fields["name"]
    where = {"path": fields["path"]} if "path" in fields else {}
    if opening := search_first(SEARCH, {"pattern": subject, **where}, subject, steps, voice):
        return opening
    count = len(grep_matches(steps[-1].result))
    if not count:
        return voice.say(NONE, subject=subject)
    return voice.say(COUNTED, subject=subject, count=lines_in_words(count))


def lines_in_words(count: int) -> str:
    return "1 line" if count == 1 else f"{count} lines"


FAMILY = Family("count", 0.6, PHRASINGS, build, respond)
