"""Regular expressions over lines of text, with protection against patterns that never come back.

This file is also a program of its own (standard library only): patterns that can backtrack without bound are matched in
a child process that the caller can kill, because a running ``re`` match cannot be interrupted from within. The child
gives up every file and the network before it looks at the pattern.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from re import _constants as opcodes  # type: ignore[attr-defined]
from re import _parser as parser  # type: ignore[attr-defined]
from typing import NamedTuple

from nanocode.agent import landlock

# A repeat bounded by this many is as harmless as writing it out.
SMALL_REPEAT = 16
# One unbounded repeat costs at most the square of this on one line.
SAFE_LINE_CHARACTERS = 2_000
SAFE_WAYS = 1_000
SAFE_WAYS_WITH_REPEAT = 16
MANY = 1_000_000
REPEATS = (opcodes.MAX_REPEAT, opcodes.MIN_REPEAT, opcodes.POSSESSIVE_REPEAT)
SHOWN_LINE_CHARACTERS = 200


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Raises ValueError with a short reason when ``pattern`` is not a regular expression."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise ValueError(str(error) or type(error).__name__) from None


class Backtracking(NamedTuple):
    """How a pattern can go wrong: repeats without a small bound, and ways to match through everything else."""

    repeats: int
    ways: int

    def harmless_for(self, longest_line: int) -> bool:
        """Whether a line of that many characters is searched in milliseconds, whatever stands in it."""
        if self.repeats == 0:
            return self.ways <= SAFE_WAYS
        return self.repeats == 1 and self.ways <= SAFE_WAYS_WITH_REPEAT and longest_line <= SAFE_LINE_CHARACTERS


def backtracking(pattern: str) -> Backtracking:
    """Upper bounds, read off the parsed pattern."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _backtracking(parser.parse(pattern))
        except RecursionError:
            # Groups within groups, deeper than this process can look: for the child, which may break.
            return Backtracking(MANY, MANY)


def _backtracking(node: object) -> Backtracking:
    """Over a parsed expression: its nodes are (opcode, argument) pairs, lists and tuples of these."""
    if isinstance(node, tuple) and len(node) == 2 and node[0] in REPEATS:
        low, high, body = node[1]
        return _repeated(low, high, _backtracking(body))
    if isinstance(node, tuple) and len(node) == 2 and node[0] is opcodes.BRANCH:
        branches = [_backtracking(branch) for branch in node[1][1]]
        return Backtracking(sum(branch.repeats for branch in branches), sum(branch.ways for branch in branches))
    if isinstance(node, tuple) and node and node[0] is opcodes.GROUPREF:
        # What a group reference matches can vary with the group.
        return Backtracking(0, 2)
    if isinstance(node, tuple | list | parser.SubPattern):
        parts = [_backtracking(part) for part in node]
        ways = 1
        for part in parts:
            ways = min(ways * part.ways, MANY)
        return Backtracking(sum(part.repeats for part in parts), ways)
    return Backtracking(0, 1)


def _repeated(low: int, high: int, body: Backtracking) -> Backtracking:
    if high > SMALL_REPEAT:
        # A choice below a repeat multiplies with every round.
        return Backtracking(1 if body == (0, 1) else MANY, 1)
    ways = 1
    for _ in range(high):
        ways = min(ways * body.ways, MANY)
    return Backtracking(body.repeats * max(high, 1), min(ways * (high - low + 1), MANY))


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
    landlock.restrict({}, tcp=False)
    request = json.load(sys.stdin)
    json.dump(first_matches(compile_pattern(request["pattern"]), request["files"], request["limit"]), sys.stdout)
