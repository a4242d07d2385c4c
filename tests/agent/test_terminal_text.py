"""Text for a terminal: nothing steers, nothing floods, and a diff says which line is which."""

import difflib
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent.terminal_text import COMPARED_LINES, DiffRow, clipped, diff_rows, visible

LINES = st.lists(st.sampled_from(["a", "b", "c", ""]), max_size=12)


@given(st.text())
def test_visible_text_holds_nothing_that_steers_and_can_be_encoded(text: str) -> None:
    shown = visible(text)
    assert not {unicodedata.category(each) for each in shown if each not in "\n\t"} & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    shown.encode()
    assert visible(shown) == shown


def test_what_steers_becomes_its_number() -> None:
    assert visible("\x1b[2J\x07 \x9b \u202e \u2028 \ud800 \U000e0041") == (
        "\\x1b[2J\\x07 \\x9b \\u202e \\u2028 \\ud800 \\U000e0041"
    )
    assert visible("tab\tnewline\n é→日本") == "tab\tnewline\n é→日本"


@given(st.lists(st.text("ab", max_size=3), max_size=40), st.integers(1, 12))
def test_clipping_keeps_head_and_tail_and_counts_the_middle(lines: list[str], limit: int) -> None:
    shown = clipped(lines, limit)
    if len(lines) <= limit + 1:
        assert shown == lines
    else:
        head = next(at for at, line in enumerate(shown) if line.startswith("... "))
        tail = len(shown) - head - 1
        assert shown[:head] == lines[:head] and shown[head + 1 :] == lines[len(lines) - tail :]
        assert shown[head] == f"... {len(lines) - head - tail} lines left out ..." and head + tail == limit
        assert head > tail, "the head says more than the tail"


def test_a_diff_is_short_and_numbered() -> None:
    before = "".join(f"{number}\n" for number in range(1, 51))
    after = before.replace("25\n", "x\ny\n").replace("40\n", "")
    assert [(row.mark, row.number, row.text) for row in diff_rows(before, after)] == [
        (" ", 23, "23"),
        (" ", 24, "24"),
        ("-", 25, "25"),
        ("+", 25, "x"),
        ("+", 26, "y"),
        (" ", 27, "26"),
        (" ", 28, "27"),
        ("…", 0, ""),
        (" ", 39, "38"),
        (" ", 40, "39"),
        ("-", 40, "40"),
        (" ", 41, "41"),
        (" ", 42, "42"),
    ]


@given(LINES, LINES)
def test_rows_of_a_diff_stand_where_they_say_and_turn_one_text_into_the_other(old: list[str], new: list[str]) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    rows = diff_rows(before, after)
    for row in rows:
        if row.mark in "-+ ":
            assert (old if row.mark == "-" else new)[row.number - 1] == row.text
    removed = {row.number - 1 for row in rows if row.mark == "-"}
    added = {row.number - 1 for row in rows if row.mark == "+"}
    kept_old = [line for at, line in enumerate(old) if at not in removed]
    assert kept_old == [line for at, line in enumerate(new) if at not in added]
    changed = sum(tag != " " for tag in (line[0] for line in difflib.ndiff(old, new)) if tag in "-+ ")
    assert (len(removed) + len(added) > 0) == (changed > 0)


def test_a_missing_newline_at_the_end_is_a_change_that_shows() -> None:
    assert diff_rows("a\nb", "a\nb\n") == [
        DiffRow(" ", 1, "a"),
        DiffRow("-", 2, "b  (no newline at the end)"),
        DiffRow("+", 2, "b"),
    ]
    assert diff_rows("a\n", "a\n") == []


def test_a_change_too_large_to_compare_is_one_block_out_and_one_in() -> None:
    count = COMPARED_LINES + 1
    rows = diff_rows("a\n" * count, "b\n" * count)
    assert [row.mark for row in rows] == ["-"] * count + ["+"] * count
