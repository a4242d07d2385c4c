"""Edit changes the one place that was meant and nothing else; Read numbers lines as the file does."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent.editing import numbered, replace_once
from nanocode.agent.files import ToolError


def test_the_numbers_are_the_files_also_with_an_offset() -> None:
    text = "".join(f"line {number}\n" for number in range(1, 15))
    assert numbered(text, "a", 3, 2) == "    3→line 3\n    4→line 4\n... 10 more lines"
    assert numbered(text, "a", 13, 1) == "   13→line 13\n... 1 more line"
    assert numbered(text, "a", 14, 100) == "   14→line 14"


def test_only_newlines_end_lines() -> None:
    # Form feeds, U+2028 and lone carriage returns are line ends to str.splitlines, but to no editor and no compiler.
    assert numbered("a\x0cb\u2028c\rd\ne", "a", 1, 9) == "    1→a\x0cb\u2028c\rd\n    2→e"


def test_an_empty_file_and_an_offset_past_the_end_are_errors() -> None:
    with pytest.raises(ToolError, match="file is empty: a"):
        numbered("", "a", 1, 9)
    with pytest.raises(ToolError, match="a has only 1 line"):
        numbered("x\n", "a", 2, 9)


@pytest.mark.parametrize(
    ("data", "old", "message"),
    [
        (b"x = 1\n", "y", "old_string not found in a.py"),
        (b"x\nx\nx\n", "x", "old_string occurs 3 times in a.py"),
        # Overlapping places are two places.
        (b"aaa", "aa", "old_string occurs 2 times in a.py"),
        (b"x = 1\n", "", "old_string is empty; leave it out to create a file"),
        (b"x = 1\n", "z", "old_string and new_string are the same"),
        (b"x = 1\ny = 2\n", "    1→x = 1\n    2→y = 2", "old_string holds line numbers from Read; leave out '    1→'"),
        (b"\0x", "x", "binary file: a.py"),
        (b"x", "\ud800", "old_string is not valid text"),
    ],
)
def test_edits_that_would_be_a_guess_are_refused(data: bytes, old: str, message: str) -> None:
    with pytest.raises(ToolError) as refused:
        replace_once(data, old, "z", "a.py")
    assert str(refused.value) == message


@pytest.mark.parametrize(
    ("old", "hint"),
    [
        ("\tgive(1)", "; line 2 differs in white space only: '    give(1)'"),
        ("def one():\n  give(1)", "; line 1 is its first line, but the rest differs"),
        ("    give(2)", "; line 2 is nearest: '    give(1)'"),
        ("class Other:", ""),
        ("\n\n", ""),
    ],
)
def test_a_text_that_is_not_there_is_told_where_it_comes_near(old: str, hint: str) -> None:
    with pytest.raises(ToolError) as refused:
        replace_once(b"def one():\n    give(1)\n", old, "z", "a.py")
    assert str(refused.value) == f"old_string not found in a.py{hint}"


def test_a_hint_is_quick_also_in_a_large_file() -> None:
    data = b"".join(b"value_%d = compute(%d, %d)\n" % (n, n, n * n) for n in range(30_000))
    started = time.perf_counter()
    with pytest.raises(ToolError, match=r"not found in a\.py$"):
        replace_once(data, "value_x = compute(1, 2)", "z", "a.py")
    assert time.perf_counter() - started < 2


def test_line_numbers_pasted_into_the_new_text_are_refused() -> None:
    with pytest.raises(ToolError, match="new_string holds line numbers"):
        replace_once(b"x = 1\n", "x = 1", "    1→x = 2", "a.py")


def test_an_arrow_that_is_in_the_file_can_be_edited() -> None:
    assert replace_once("    1→x\n".encode(), "    1→x", "y", "a").data == b"y\n"


def test_carriage_returns_survive_and_follow_into_new_lines() -> None:
    data = b"a\r\nb\r\nc\r\n"
    # Read shows no carriage return, so the model writes none.
    assert replace_once(data, "a\nb\n", "x\ny\nz\n", "f").data == b"x\r\ny\r\nz\r\nc\r\n"
    assert replace_once(data, "b", "b\nb2", "f").data == b"a\r\nb\r\nb2\r\nc\r\n"


def test_mixed_line_endings_stay_as_they_are() -> None:
    assert replace_once(b"a\r\nb\nc\r\n", "b\n", "x\ny\n", "f").data == b"a\r\nx\ny\nc\r\n"


def test_bytes_that_are_not_utf8_stay() -> None:
    assert replace_once(b"\xff\xfe a \x80", "a", "b", "f").data == b"\xff\xfe b \x80"


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("b", "x", (2, 2)),
        ("a\nb", "a\nx", (2, 2)),
        ("b\n", "x\ny\nz\n", (2, 4)),
        ("b\n", "", (2, 2)),
        ("a\nb\nc\n", "", (1, 1)),
        ("c\n", "c\nd\n", (4, 4)),
        ("a\n", "x", (1, 1)),
    ],
)
def test_the_reported_lines_are_those_that_changed(old: str, new: str, lines: tuple[int, int]) -> None:
    edited = replace_once(b"a\nb\nc\n", old, new, "f")
    assert (edited.first_line, edited.last_line) == lines


@given(st.binary(max_size=30), st.binary(max_size=30), st.text(max_size=10))
def test_everything_outside_the_match_is_kept(head: bytes, tail: bytes, new: str) -> None:
    head, tail = (part.replace(b"\0", b"").replace(b"@", b"").replace(b"\n", b"") for part in (head, tail))
    if new == "@" or "\r" in new or "→" in new:
        return
    try:
        new.encode()
    except UnicodeEncodeError:
        return
    assert replace_once(head + b"@" + tail, "@", new, "f").data == head + new.encode() + tail
