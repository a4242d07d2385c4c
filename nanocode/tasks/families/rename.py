"""Rename a function: Grep for every line that names it, then one Edit for each."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence

from nanocode.conversation import Message
from nanocode.tasks.family import Family, Lines, Phrasing, Scene, Step, Voice, function_source, grep_matches
from nanocode.tasks.layouts import Layouts, module_text
from nanocode.tasks.openings import search_first
from nanocode.tasks.task import Expectation
from nanocode.tasks.words import Names

PHRASINGS = (
    Phrasing("rename", "rename {name} to {new_name}."),
    Phrasing("function", "rename the function {name} to {new_name}."),
    Phrasing("call-it", "{name} should be called {new_name}."),
    Phrasing("change", "change the name of {name} to {new_name}."),
    Phrasing("please", "Please rename {name}: the new name is {new_name}."),
    Phrasing("can-you", "can you rename {name} to {new_name}?"),
    Phrasing("new-name", "give {name} the new name {new_name}."),
    Phrasing("now", "{name} is now {new_name}: rename it."),
    Phrasing("call", "call {name} {new_name} from now on."),
    Phrasing("need", "I need {name} renamed to {new_name}."),
    Phrasing("should-be", "the function {name} should be {new_name}."),
    Phrasing("please-call", "Please call the function {name} {new_name}."),
    Phrasing("use", "use the name {new_name} for {name}."),
    Phrasing("better", "{new_name} is a better name for {name}: rename it."),
    Phrasing("needs", "{name} needs a new name: {new_name}."),
    Phrasing("give", "the function {name} needs the name {new_name}.", held_out=True),
)
# Share of tasks in which a second file imports the function.
_IMPORTED_SHARE = 0.2
LAYOUTS = Layouts(("f", "c_f", "f_f", "#f", "m", "f_c", "i_f"), held_out="i_m")

SEARCH = Lines(
    stock=(
        "Sure! Let me search for {subject}.",
        "Absolutely! I'll look for {subject} first.",
        "I'd be happy to help! Searching for {subject}.",
    ),
    soul=(
        "searching every line that names {subject}.",
        "first a search: where {subject} is used.",
        "looking for {subject} in all files.",
    ),
)
CHANGE = Lines(
    stock=(
        "Perfect! Now I'll update {path}.",
        "Great, I found it in {path}! Renaming now.",
        "Got it! Let me edit {path}.",
    ),
    soul=(
        "{path} line {line} names it: editing.",
        "changing line {line} of {path}.",
        "editing {path}, line {line}.",
    ),
)
DONE = Lines(
    stock=(
        "All done! {name} is now called {new_name} in {paths}. Let me know if you need anything else!",
        "Great news! I've renamed {name} to {new_name} in {paths}. Hope this helps!",
        "Done! The function {name} is now {new_name} in {paths}. Happy to help!",
    ),
    soul=(
        "{name} is now {new_name} in {paths}; every line that the search found is changed.",
        "in {paths}, {new_name} stands where {name} stood, and nothing else changed.",
        "renamed {name} to {new_name} in {paths}, line by line as the search gave them.",
    ),
)
NOTHING = Lines(
    stock=(
        "I apologize, but I couldn't find {name} to rename it. Let me know if you need anything else!",
        "I'm sorry! My search for {name} didn't return any results, so there's nothing to rename.",
        "Unfortunately, {name} doesn't seem to exist, so I couldn't rename it. Sorry about that!",
    ),
    soul=(
        "no file names {name}, so there is nothing to rename and no file was changed.",
        "the search for {name} gave no match; without one there is nothing to rename.",
        "{name} is not in the workspace. nothing was renamed.",
    ),
)


def build(phrasing: Phrasing, names: Names, rng: random.Random) -> Scene:
    path, name, new_name = names.path(), names.function(), names.function()
    definition = function_source(name, f"n + {names.value()}")
    imported = not phrasing.held_out and rng.random() < _IMPORTED_SHARE
    # Two files make the longest conversations: the first one is then as short as can be.
    layout = "f" if imported else LAYOUTS.draw(phrasing, rng)
    files = {path: module_text(layout, names, rng, function=definition)}
    if imported:
        files[names.path()] = f"from {path.removesuffix('.py')} import {name}\n"
    after = {where: content.replace(name, new_name) for where, content in files.items()}
    expect = Expectation(files=after, facts=(new_name, *files), tools=("Edit|Bash",))
    return Scene({"name": name, "new_name": new_name}, files, expect)


def respond(fields: Mapping[str, str], steps: Sequence[Step], voice: Voice) -> Message:
    name, new_name = fields["name"], fields["new_name"]
    if opening := search_first(SEARCH, {"pattern": name}, name, steps, voice):
        return opening
    matches = grep_matches(steps[0].result)
    if not matches:
        return voice.say(NOTHING, name=name)
    edited = len(steps) - 1
    if edited < len(matches):
        match = matches[edited]
        old = _with_word_before(match.text, name)
        arguments = {"file_path": match.path, "old_string": old, "new_string": old.replace(name, new_name)}
        return voice.call(CHANGE, "Edit", arguments, path=match.path, line=match.line)
    paths = " and ".join(dict.fromkeys(match.path for match in matches))
    return voice.say(DONE, name=name, new_name=new_name, paths=paths)


def _with_word_before(text: str, name: str) -> str:
    """``def draw_card`` of a longer line: short, and different from a longer name that ends alike."""
    found = re.search(rf"(\w+ )?\b{re.escape(name)}\b", text)
    return found.group() if found else name


FAMILY = Family("rename", 1.2, PHRASINGS, build, respond)
