"""The Grep tool: regular text files of the workspace, searched in this process where that is safe, else in a child."""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from nanocode.agent import matching
from nanocode.agent.files import ToolError, TooManyFiles, Workspace
from nanocode.agent.processes import Bounds, run_bounded

SKIPPED_FOLDERS = frozenset({".git", ".nanocode"})
MAX_PATTERN_CHARACTERS = 1_000
MAX_FILES = 5_000
MAX_TOTAL_BYTES = 32_000_000
CHILD_SECONDS = 5.0
CHILD_OUTPUT_BYTES = 1_000_000


@dataclass
class _Budget:
    """How much a search may read; ``exhausted`` says that it stopped early."""

    files: int
    total_bytes: int
    exhausted: bool = False

    def allows(self, size: int) -> bool:
        self.files -= 1
        self.total_bytes -= size
        self.exhausted = self.files < 0 or self.total_bytes < 0
        return not self.exhausted


def grep(workspace: Workspace, pattern: str, path: PurePosixPath, max_matches: int) -> str:
    """``path:line:text`` for each matching line, sorted by path; `no matches`. Raises ToolError on a bad pattern."""
    if not pattern:
        raise ToolError("pattern is empty")
    if len(pattern) > MAX_PATTERN_CHARACTERS:
        raise ToolError(f"pattern is longer than {MAX_PATTERN_CHARACTERS} characters")
    try:
        compiled = matching.compile_pattern(pattern)
    except ValueError as error:
        raise ToolError(f"invalid pattern: {error}") from None
    budget = _Budget(MAX_FILES, MAX_TOTAL_BYTES)
    matches, total = _search(compiled, _texts(workspace, path, pattern, budget), max_matches)
    rows = [f"{file}:{number}:{line}" for file, number, line in matches]
    if total > len(matches):
        rows.append(f"... {total - len(matches)} more {'match' if total - len(matches) == 1 else 'matches'}")
    if budget.exhausted:
        rows.append("... stopped: too many files, give a path")
    return "\n".join(rows) or "no matches"


def _texts(workspace: Workspace, path: PurePosixPath, pattern: str, budget: _Budget) -> Iterator[tuple[str, str]]:
    # A pattern without special characters can rule out most files before they are split into lines.
    literal = pattern.encode("utf-8", "replace") if re.escape(pattern) == pattern else b""
    try:
        for name, data in workspace.files(path, SKIPPED_FOLDERS):
            if not budget.allows(len(data)):
                return
            if literal in data and b"\0" not in data:
                yield name, data.decode("utf-8", "replace")
    except TooManyFiles:
        budget.exhausted = True


def _search(
    pattern: re.Pattern[str], files: Iterator[tuple[str, str]], limit: int
) -> tuple[list[tuple[str, int, str]], int]:
    risk = matching.backtracking(pattern.pattern)
    if risk.repeats == 0 and risk.harmless_for(0):
        return matching.first_matches(pattern, files, limit)
    texts = list(files)
    longest = max((len(line) for _, text in texts for line in text.split("\n")), default=0)
    if risk.harmless_for(longest):
        return matching.first_matches(pattern, texts, limit)
    return _search_in_child(pattern.pattern, texts, limit)


def child_command(program: str = "matching.main()") -> list[str]:
    """An isolated Python that has only the matching module and what that imports."""
    package = str(Path(matching.__file__).resolve().parents[2])
    code = f"import sys; sys.path.insert(0, {package!r}); from nanocode.agent import matching; {program}"
    return [sys.executable, "-I", "-S", "-c", code]


def _search_in_child(pattern: str, texts: list[tuple[str, str]], limit: int) -> tuple[list[tuple[str, int, str]], int]:
    """Match in a process that is killed when the pattern backtracks for ever."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as request:
        json.dump({"pattern": pattern, "files": texts, "limit": limit}, request)
        request.seek(0)
        completed = run_bounded(
            child_command(),
            Bounds(CHILD_SECONDS, CHILD_OUTPUT_BYTES, CHILD_OUTPUT_BYTES),
            environment={},
            stdin=request.fileno(),
        )
    if completed.timed_out:
        raise ToolError(f"the pattern takes longer than {CHILD_SECONDS:.0f} seconds: make it simpler")
    if completed.exit_code != 0:
        raise ToolError("the pattern cannot be matched: make it simpler")
    matches, total = json.loads(completed.output)
    return [(file, number, line) for file, number, line in matches], total
