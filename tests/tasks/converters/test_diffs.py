"""Edits between two texts: unique, minimal, and exact when the real Edit tool applies them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.agent.policy import Policy
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall
from nanocode.tasks.converters.diffs import NoUniqueContext, TextEdit, edits_between, lines_of

LINES = st.sampled_from(["a", "aa", "b", "", "  a", "    return x", "ä\u2028b", "\x0c"])
TEXTS = st.builds(lambda lines, end: "\n".join(lines) + end, st.lists(LINES, max_size=12), st.sampled_from(["", "\n"]))
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0→"), max_size=30)


def applied(before: str, edits: list[TextEdit]) -> str:
    """What the Edit tool makes of a file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        path = Path(folder, "file.txt")
        path.write_bytes(before.encode())
        toolbox = Toolbox(Path(folder), Policy("auto"), None)
        for edit in edits:
            arguments = {"file_path": "file.txt", "old_string": edit.old, "new_string": edit.new}
            result = toolbox.execute(ToolCall("Edit", arguments))
            assert result.ok, result.text
        return path.read_bytes().decode()


@settings(max_examples=200, deadline=None)
@given(TEXTS | ANY_TEXT, TEXTS | ANY_TEXT)
def test_the_edit_tool_turns_before_into_after_exactly(before: str, after: str) -> None:
    if not before and after:
        with pytest.raises(NoUniqueContext):
            edits_between(before, after)
        return
    assert applied(before, edits_between(before, after)) == after


@given(TEXTS)
def test_equal_texts_need_no_edit(text: str) -> None:
    assert edits_between(text, text) == []
    assert "".join(lines_of(text)) == text


def test_a_unique_line_is_its_own_context() -> None:
    assert edits_between("a\nb\nc\n", "a\nX\nc\n") == [TextEdit("b", "X", 1, 2)]


def test_a_repeated_line_takes_the_neighbour_that_tells_it_apart() -> None:
    before = "def f():\n    return 1\n\ndef g():\n    return 1\n"
    (edit,) = edits_between(before, before[:-2] + "2\n")
    assert edit.old == "def g():\n    return 1"


def test_distant_changes_are_edits_of_their_own() -> None:
    before = "".join(f"line {number}\n" for number in range(20))
    after = before.replace("line 3\n", "three\n").replace("line 15\n", "")
    assert edits_between(before, after) == [TextEdit("line 3", "three", 3, 4), TextEdit("line 15\n", "", 15, 16)]


def test_an_insertion_hangs_on_a_line_that_is_there() -> None:
    (edit,) = edits_between("one\ntwo\n", "one\nnew\ntwo\n")
    assert edit.old in ("one", "two")
    assert applied("one\ntwo\n", [edit]) == "one\nnew\ntwo\n"


def test_no_context_of_the_allowed_size_is_said() -> None:
    before = "x\n" * 50
    with pytest.raises(NoUniqueContext, match="within 4 lines around line 26"):
        edits_between(before, "x\n" * 25 + "y\n" + "x\n" * 25, max_context_lines=4)
