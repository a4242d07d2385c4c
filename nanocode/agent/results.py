"""What the model reads of a call: result texts, bounded in length and always valid text."""

from __future__ import annotations

from dataclasses import dataclass, field

from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits


@dataclass(frozen=True)
class ToolResult:
    """What the model reads, and whether the call did what it asked for. ``exit_code`` is that of a command."""

    text: str
    ok: bool
    exit_code: int | None = field(default=None, compare=False)


def malformed_result(fault: str) -> ToolResult:
    """What the model reads of a call that it did not write as one."""
    return ToolResult(f"error: malformed call: {valid_text(fault)}", ok=False)


def bash_result(completed: Completed, limits: Limits) -> ToolResult:
    """A command's output, then what stopped it or its exit code when that is not 0, then the sandbox's notes."""
    rows = [completed.output.rstrip("\n") or "(no output)"]
    if completed.timed_out:
        rows.append(f"timed out after {limits.wall_seconds:g} seconds")
    elif completed.flooded:
        rows.append(f"stopped after {limits.flood_bytes} bytes of output")
    elif completed.exceeded:
        rows.append(f"stopped: {completed.exceeded}")
    elif completed.exit_code != 0:
        rows.append(f"exit code {completed.exit_code}")
    ok = completed.exit_code == 0 and not completed.stopped
    return ToolResult("\n".join([*rows, *completed.notes]), ok, completed.exit_code)


def capped(text: str, limit: int) -> str:
    """The text, or its head and tail with a marker between that says how much is missing; never over ``limit``."""
    if len(text) <= limit:
        return text
    # The marker's own length depends on the number in it; reserving for the whole text's length is enough.
    room = limit - len(_marker(len(text)))
    if room < 0:
        return text[:limit]
    head, tail = (room + 1) // 2, room // 2
    return f"{text[:head]}{_marker(len(text) - head - tail)}{text[len(text) - tail :]}"


def _marker(characters: int) -> str:
    return f"\n... {characters} characters left out ...\n"


def valid_text(text: str) -> str:
    """The text with halves of a character joined where they follow each other, else replaced by U+FFFD."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
