"""From two texts to edits: each old_string is the changed lines with as few lines around as make it unique.

The hunks are difflib's; the search for context is our own. Edits are meant to be applied in order: each is unique in
the text that the ones before it leave.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from difflib import SequenceMatcher

# Hunks with so few equal lines between them are one edit: apart, each would need the other's lines as context.
JOINED_LINES = 1


class NoUniqueContext(ValueError):
    """No old_string of the allowed size names the place."""


@dataclass(frozen=True)
class TextEdit:
    """Replace the only occurrence of `old` by `new`: lines [start, stop) of the text before, counted from 0."""

    old: str
    new: str
    start: int
    stop: int


@dataclass(frozen=True)
class _Hunk:
    """Lines [start, stop) of the text before become lines [new_start, new_stop) of the text after."""

    start: int
    stop: int
    new_start: int
    new_stop: int


def edits_between(before: str, after: str, max_context_lines: int | None = None) -> list[TextEdit]:
    """Edits that turn `before` into `after` when applied in order; none for equal texts.

    `max_context_lines` bounds the unchanged lines of one edit (None: as many as it takes). Raises NoUniqueContext,
    always so for an empty `before`, in which there is nothing to find.
    """
    old, new = lines_of(before), lines_of(after)
    edits = []
    for hunk in _hunks(old, new):
        standing = new[: hunk.new_start] + old[hunk.start :]
        edits.append(_unique_edit(standing, hunk, new[hunk.new_start : hunk.new_stop], max_context_lines))
    return edits


def shared_lines(before: str, after: str) -> float:
    """The share of lines that two texts have in common: difflib's ratio, 0 to 1."""
    return SequenceMatcher(None, lines_of(before), lines_of(after), autojunk=False).ratio()


def lines_of(text: str) -> list[str]:
    """Lines with their ends, which are newlines alone: joined they give the text."""
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1].removesuffix("\n")
    return lines if lines[-1] else lines[:-1]


def _hunks(old: list[str], new: list[str]) -> Iterator[_Hunk]:
    pending: _Hunk | None = None
    for tag, *span in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        hunk = _Hunk(*span)
        if tag == "equal":
            continue
        if pending is not None and hunk.start - pending.stop <= JOINED_LINES:
            hunk = _Hunk(pending.start, hunk.stop, pending.new_start, hunk.new_stop)
        elif pending is not None:
            yield pending
        pending = hunk
    if pending is not None:
        yield pending


def _unique_edit(lines: list[str], hunk: _Hunk, replacement: list[str], most: int | None) -> TextEdit:
    """The edit of a hunk with the fewest lines of context, evenly above and below where that will do.

    `lines` are the text as it stands, in which the hunk's lines begin at `hunk.new_start`.
    """
    text = "".join(lines)
    start, stop = hunk.new_start, hunk.new_start + hunk.stop - hunk.start
    around = len(lines) - (stop - start)
    for context in range((around if most is None else min(around, most)) + 1):
        for above in sorted(range(context + 1), key=lambda above: (abs(context - 2 * above), above)):
            below = context - above
            if above > start or stop + below > len(lines):
                continue
            old = "".join(lines[start - above : stop + below])
            new = "".join([*lines[start - above : start], *replacement, *lines[stop : stop + below]])
            for each in _forms(old, new):
                if _occurs_once(text, each[0]):
                    return TextEdit(*each, max(0, hunk.start - above), hunk.stop + below)
    raise NoUniqueContext(f"no unique old_string within {most} lines around line {hunk.start + 1}")


def _forms(old: str, new: str) -> list[tuple[str, str]]:
    """As people write it, without the last newline, if both sides have one; and as it is."""
    if old.endswith("\n") and new.endswith("\n"):
        return [(old.removesuffix("\n"), new.removesuffix("\n")), (old, new)]
    return [(old, new)]


def _occurs_once(text: str, part: str) -> bool:
    """Occurrences that overlap count apart, as they do for the Edit tool."""
    first = text.find(part) if part else -1
    return first >= 0 and text.find(part, first + 1) < 0
