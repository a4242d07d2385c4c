"""Regular expressions over lines of text, with protection against patterns that never come back.

This file is also a program of its own (standard library only): patterns that can backtrack without bound are matched in
a child process that the caller can kill, because a running ``re`` match cannot be interrupted from within.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]

# A repeat bounded by this many is as harmless as writing it out.
SMALL_REPEAT = 16
# One unbounded repeat costs at most the square of this on one line, which is milliseconds.
SAFE_LINE_CHARACTERS = 2_000
SHOWN_LINE_CHARACTERS = 200


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Raises ValueError with a short reason when ``pattern`` is not a regular expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error) or type(error).__name__) from None


def unbounded_repeats(pattern: str) -> int:
    """How many unbounded or large repeats the pattern can backtrack over; one inside another counts as 100."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _count(parser.parse(pattern))


def _count(node: object) -> int:
    """Sum over a parsed expression; the parser's nodes are (opcode, argument) pairs, lists and tuples of these."""
    if isinstance(node, tuple) and len(node) == 2 and node[0] in (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT):
        _, high, body = node[1]
        inside = _count(body)
        if high is opcodes.MAXREPEAT or high > SMALL_REPEAT:
            # Alternatives below a repeat can overlap, which is as bad as a nested repeat.
            return 100 if inside or _branches(body) else 1
        return 100 if inside and high > 1 else inside
    if isinstance(node, tuple | list | parser.SubPattern):
        return sum(_count(part) for part in node)
    return 0


def _branches(node: object) -> bool:
    if isinstance(node, tuple) and node and node[0] in (opcodes.BRANCH, opcodes.GROUPREF):
        return True
    return isinstance(node, tuple | list | parser.SubPattern) and any(_branches(part) for part in node)


def matching_lines(pattern: re.Pattern[str], files: Iterable[tuple[str, str]]) -> Iterator[tuple[str, int, str]]:
    """(path, line number from 1, line) of every line in which ``pattern`` is found, in the order of ``files``."""
    for path, text in files:
        for number, line in enumerate(split_lines(text), start=1):
            if pattern.search(line):
                yield path, number, line


def split_lines(text: str) -> list[str]:
    """Lines as every editor counts them: ended by newlines alone (a carriage return before it is dropped)."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def first_matches(
    pattern: re.Pattern[str], files: Iterable[tuple[str, str]], limit: int
) -> tuple[list[tuple[str, int, str]], int]:
    """The first ``limit`` matches, their lines cut to SHOWN_LINE_CHARACTERS, and how many there are in all."""
    matches, total = [], 0
    for path, number, line in matching_lines(pattern, files):
        total += 1
        if total <= limit:
            matches.append((path, number, line[:SHOWN_LINE_CHARACTERS]))
    return matches, total


def main() -> None:
    """Read ``{"pattern", "files", "limit"}`` from standard input, write ``[matches, total]``, both as JSON."""
    request = json.load(sys.stdin)
    json.dump(first_matches(compile_pattern(request["pattern"]), request["files"], request["limit"]), sys.stdout)


if __name__ == "__main__":
    main()
