"""Text on its way to a terminal: what steers is made visible, what is long loses its middle, what changed is a diff."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

DIFF_CONTEXT_LINES = 2
# Beyond this the longest common subsequence takes seconds; a change so large is shown as one block out, one block in.
COMPARED_LINES = 2_000
_STEERING = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})

Mark = Literal[" ", "-", "+", "…"]
Line = tuple[str, bool]


def visible(text: str) -> str:
    """Text that cannot steer the terminal: what would, becomes ``\\xNN`` or ``\\uNNNN``; newlines and tabs stay.

    That is control characters (escape sequences), format characters (text that runs backwards or is invisible), line
    separators, and lone surrogates, which no stream can encode.
    """
    if text.isprintable():
        return text
    return "".join(_escaped(character) if _steers(character) else character for character in text)


def _steers(character: str) -> bool:
    return unicodedata.category(character) in _STEERING and character not in "\n\t"


def _escaped(character: str) -> str:
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def clipped(lines: Sequence[str], limit: int) -> list[str]:
    """The lines, or ``limit`` of them with a note in place of the middle: two thirds from the head, the rest the tail.

    A note in place of a single line would save nothing, so one line more than ``limit`` is still shown whole.
    """
    if len(lines) <= limit + 1:
        return list(lines)
    tail = limit // 3
    head = limit - tail
    return [*lines[:head], f"... {len(lines) - limit} lines left out ...", *lines[len(lines) - tail :]]


@dataclass(frozen=True)
class DiffRow:
    """One row of a diff. ``number`` counts from 1, in the old text for removed rows, in the new one for all others."""

    mark: Mark
    number: int
    text: str


def diff_rows(before: str, after: str) -> list[DiffRow]:
    """The lines that differ with DIFF_CONTEXT_LINES around them; a ``…`` row stands for unchanged ones between."""
    old, new = _lines(before), _lines(after)
    same_head = _common(old, new)
    same_tail = _common(old[same_head:][::-1], new[same_head:][::-1])
    # The matcher sees only the part that differs: an edit in a long file costs no more than in a short one.
    head = max(same_head - DIFF_CONTEXT_LINES, 0)
    tail = max(same_tail - DIFF_CONTEXT_LINES, 0)
    old_part, new_part = old[head : len(old) - tail], new[head : len(new) - tail]
    rows: list[DiffRow] = []
    for group in _groups(old_part, new_part):
        if rows:
            rows.append(DiffRow("…", 0, ""))
        for tag, old_first, old_end, new_first, new_end in group:
            if tag == "equal":
                rows += _rows(" ", new_part, new_first, new_end, head)
            else:
                rows += _rows("-", old_part, old_first, old_end, head)
                rows += _rows("+", new_part, new_first, new_end, head)
    return rows


def _lines(text: str) -> list[Line]:
    """Lines as Read numbers them, each with whether a newline ends it."""
    parts = text.split("\n")
    last = [(parts[-1], False)] if parts[-1] else []
    return [*((part, True) for part in parts[:-1]), *last]


def _common(first: Sequence[Line], second: Sequence[Line]) -> int:
    """How many lines two sequences open with in common."""
    return next(
        (at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _groups(old: list[Line], new: list[Line]) -> Iterator[list[tuple[str, int, int, int, int]]]:
    if old == new:
        return
    if max(len(old), len(new)) > COMPARED_LINES:
        yield [("replace", 0, len(old), 0, len(new))]
        return
    yield from difflib.SequenceMatcher(None, old, new, autojunk=False).get_grouped_opcodes(DIFF_CONTEXT_LINES)


def _rows(mark: Mark, lines: list[Line], first: int, end: int, skipped: int) -> list[DiffRow]:
    rows = []
    for at in range(first, end):
        text, ended = lines[at]
        note = "" if ended or mark == " " else "  (no newline at the end)"
        rows.append(DiffRow(mark, skipped + at + 1, text.removesuffix("\r") + note))
    return rows
