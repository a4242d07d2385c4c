"""What Read shows and what Edit does, as functions of bytes and text: no files here."""

from __future__ import annotations

import re
from dataclasses import dataclass

from nanocode.agent import nearest
from nanocode.agent.files import ToolError
from nanocode.agent.matching import split_lines

NUMBERED_LINE = re.compile(r"[ ]{0,4}[0-9]+→")


def decode(data: bytes, path: str) -> str:
    """File bytes as text; bytes that are not UTF-8 become U+FFFD. Raises ToolError for binary content."""
    refuse_binary(data, path)
    return data.decode("utf-8", "replace")


def refuse_binary(data: bytes, path: str) -> None:
    """Raise ToolError when there is a zero byte, which no text file has."""
    if b"\0" in data:
        raise ToolError(f"binary file: {path}")


def numbered(text: str, path: str, offset: int, limit: int) -> str:
    """Lines ``offset`` to ``offset + limit - 1`` (from 1) as `    1→text`, then a note on how many follow."""
    lines = split_lines(text)
    if not lines:
        raise ToolError(f"file is empty: {path}")
    if offset > len(lines):
        raise ToolError(f"{path} has only {plural(len(lines), 'line')}")
    chosen = lines[offset - 1 : offset - 1 + limit]
    rows = [f"{number:5d}→{line}" for number, line in enumerate(chosen, start=offset)]
    following = len(lines) - (offset - 1) - len(chosen)
    if following:
        rows.append(f"... {following} more {'line' if following == 1 else 'lines'}")
    return "\n".join(rows)


def plural(count: int, noun: str) -> str:
    """``1 line``, ``2 lines``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@dataclass(frozen=True)
class Edited:
    """New file content and the first and last changed line, counted in it from 1."""

    data: bytes
    first_line: int
    last_line: int


def replace_once(data: bytes, old: str, new: str, path: str) -> Edited:
    """Replace the only occurrence of ``old``. Bytes outside of it stay, line endings follow the file's own.

    Raises ToolError when ``old`` is empty, absent, ambiguous, equal to ``new`` or pasted with Read's line numbers.
    """
    refuse_binary(data, path)
    if not old:
        raise ToolError("old_string is empty; leave it out to create a file")
    if old == new:
        raise ToolError("old_string and new_string are the same")
    needle, converted = _find_form(data, encode(old, "old_string"))
    count = _occurrences(data, needle)
    if count == 0:
        refuse_line_numbers(old, "old_string")
        near = nearest.hint(split_lines(data.decode("utf-8", "replace")), old)
        raise ToolError(f"old_string not found in {path}" + (f"; {near}" if near else ""))
    if count > 1:
        raise ToolError(f"old_string occurs {count} times in {path}")
    refuse_line_numbers(new, "new_string")
    replacement = encode(new, "new_string")
    if converted or _only_crlf(data):
        replacement = _to_crlf(replacement)
    after = data.replace(needle, replacement)
    return Edited(after, *_changed_lines(data, after))


def encode(text: str, argument: str) -> bytes:
    """UTF-8 bytes of an argument. Raises ToolError for lone surrogates."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ToolError(f"{argument} is not valid text") from None


def refuse_line_numbers(text: str, argument: str) -> None:
    """Raise ToolError when every line starts as Read's output does: the numbers are not part of the file."""
    lines = [line for line in text.split("\n") if line]
    if lines and all(NUMBERED_LINE.match(line) for line in lines):
        prefix = NUMBERED_LINE.match(lines[0])
        assert prefix is not None, "just matched"
        raise ToolError(f"{argument} holds line numbers from Read; leave out {prefix.group()!r}")


def _find_form(data: bytes, needle: bytes) -> tuple[bytes, bool]:
    """The form of ``needle`` to look for, and whether its newlines were turned into the file's CRLF.

    Read shows no carriage returns, so a model cannot know of them.
    """
    windows = _to_crlf(needle)
    if windows != needle and (_only_crlf(data) or (needle not in data and windows in data)):
        return windows, True
    return needle, False


def _only_crlf(data: bytes) -> bool:
    return b"\n" in data and data.count(b"\n") == data.count(b"\r\n")


def _to_crlf(text: bytes) -> bytes:
    """Text that already holds carriage returns is taken as meant."""
    return text if b"\r" in text else text.replace(b"\n", b"\r\n")


def _occurrences(data: bytes, needle: bytes) -> int:
    """Overlapping ones count: replacing either would be a guess."""
    count, at = 0, data.find(needle)
    while at >= 0:
        count, at = count + 1, data.find(needle, at + 1)
    return count


def _changed_lines(before: bytes, after: bytes) -> tuple[int, int]:
    old_lines, new_lines = before.split(b"\n"), after.split(b"\n")
    shortest = min(len(old_lines), len(new_lines))
    same_head = 0
    while same_head < shortest and old_lines[same_head] == new_lines[same_head]:
        same_head += 1
    same_tail = 0
    while same_tail < shortest - same_head and old_lines[-1 - same_tail] == new_lines[-1 - same_tail]:
        same_tail += 1
    first = min(same_head + 1, len(new_lines))
    return first, max(first, len(new_lines) - same_tail)
