"""The four tools: Read, Edit, Grep, Bash. A call goes in, a short text comes out, and never an exception.

Result texts are a contract: training data holds them, made by this code, and a model that reads a few hundred tokens
has to make sense of them. What went wrong starts with ``error: ``.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nanocode.agent.editing import Edited, decode, encode, numbered, plural, refuse_line_numbers, replace_once
from nanocode.agent.files import MAX_FILE_BYTES, FileContent, ToolError, Workspace, shown
from nanocode.agent.matching import split_lines
from nanocode.agent.policy import Policy, deny_all
from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits, SandboxUnavailable, Shell
from nanocode.agent.search import grep
from nanocode.conversation import ToolCall

SHOWN_NAME_CHARACTERS = 40
DEFAULT_READ_LINES = 100
WHOLE_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class ToolSpec:
    """A tool as it is offered to a model and documented."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...]
    description: str


TOOLS: Mapping[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        ToolSpec("Read", ("file_path",), ("offset", "limit"), "Show numbered lines of a file, from line offset on."),
        ToolSpec(
            "Edit",
            ("file_path", "new_string"),
            ("old_string",),
            "Replace the one place where old_string stands; without old_string, create the file.",
        ),
        ToolSpec("Grep", ("pattern",), ("path",), "Find lines that match a regular expression."),
        ToolSpec("Bash", ("command",), (), "Run a shell command in the workspace."),
    )
}


@dataclass(frozen=True)
class ToolResult:
    """What the model reads, and whether the call did what it asked for."""

    text: str
    ok: bool


@dataclass(frozen=True)
class ToolLimits:
    """Bounds of results; characters of text, matches of Grep, and those of a Bash command."""

    result_characters: int = 4_000
    grep_matches: int = 50
    bash: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class _Change:
    """An edit that can be undone: content before (None: there was no file) and the digest after."""

    path: PurePosixPath
    before: bytes | None
    after: bytes


@dataclass
class Toolbox:
    """The tools over one workspace under one policy. ``sandbox`` None means that Bash is refused."""

    workspace: Path
    policy: Policy
    sandbox: Shell | None
    limits: ToolLimits = field(default_factory=ToolLimits)
    _seen: dict[PurePosixPath, bytes] = field(default_factory=dict, init=False, repr=False)
    _changes: list[_Change] = field(default_factory=list, init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = Workspace.at(self.workspace)

    def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. Whatever is wrong with it, or goes wrong in it, becomes an ``error: `` result.

        Raises SandboxUnavailable when the sandbox that is there breaks: what a model reads must not depend on that.
        """
        try:
            self._check_arguments(call)
            self._check_policy(call)
            result = self._tools()[call.name](call.arguments)
        except ToolError as error:
            result = ToolResult(f"error: {error}", ok=False)
        except SandboxUnavailable as error:
            if self.sandbox is not None:
                raise
            result = ToolResult(f"error: {error}", ok=False)
        except OSError as error:
            result = ToolResult(f"error: {(error.strerror or 'the system refused').lower()}", ok=False)
        return ToolResult(capped(result.text, self.limits.result_characters), result.ok)

    def undo(self) -> str | None:
        """Take back the last edit; its path, or None without one. Raises ToolError when the file changed since."""
        if not self._changes:
            return None
        change = self._changes[-1]
        current = self._files.read(change.path)
        if _digest(current.data) != change.after:
            raise ToolError(f"{shown(change.path)} changed since that edit")
        if change.before is None:
            self._files.remove(change.path)
            self._seen.pop(change.path, None)
        else:
            self._write(change.path, change.before, current)
        self._changes.pop()
        return shown(change.path)

    def preview(self, call: ToolCall) -> tuple[str, str] | None:
        """Text before and after an Edit call, for a diff; None for other calls and for edits that would fail."""
        if call.name != "Edit":
            return None
        try:
            self._check_arguments(call)
            path, before, after = self._planned_edit(call.arguments)
            return decode(before.data, str(path)) if before else "", decode(after.data, str(path))
        except ToolError:
            return None

    def _tools(self) -> Mapping[str, Callable[[Mapping[str, str]], ToolResult]]:
        return {"Read": self._read, "Edit": self._edit, "Grep": self._grep, "Bash": self._bash}

    def _check_arguments(self, call: ToolCall) -> None:
        if call.name not in TOOLS:
            raise ToolError(f"unknown tool {call.name[:SHOWN_NAME_CHARACTERS]}: use {', '.join(TOOLS)}")
        spec = TOOLS[call.name]
        for name in spec.required:
            if name not in call.arguments:
                raise ToolError(f"{spec.name} needs {name}")
        for name in call.arguments:
            if name not in spec.required + spec.optional:
                raise ToolError(f"{spec.name} has no argument {name[:SHOWN_NAME_CHARACTERS]}")

    def _check_policy(self, call: ToolCall) -> None:
        argument = call.arguments.get("path" if call.name == "Grep" else "file_path")
        path = None if argument is None else str(self._files.relative(argument))
        decision = self.policy.decide(call, path)
        if decision.verdict == "deny":
            raise ToolError(f"not allowed: {decision.rule}")
        if decision.verdict == "ask" and not self.policy.confirm(call):
            nobody = self.policy.confirm is deny_all
            raise ToolError(f"not allowed: nobody to ask ({decision.rule})" if nobody else "the user said no")

    def _read(self, arguments: Mapping[str, str]) -> ToolResult:
        path = self._files.relative(arguments["file_path"])
        offset = _positive(arguments, "offset", 1)
        limit = _positive(arguments, "limit", DEFAULT_READ_LINES)
        content = self._files.read(path)
        self._seen[path] = _digest(content.data)
        text = decode(content.data, shown(path))
        return ToolResult(numbered(text, shown(path), offset, limit), ok=True)

    def _edit(self, arguments: Mapping[str, str]) -> ToolResult:
        path, before, after = self._planned_edit(arguments)
        if before is not None and self._seen.get(path, _digest(before.data)) != _digest(before.data):
            raise ToolError(f"{shown(path)} changed since it was read; read it again")
        self._write(path, after.data, before)
        self._changes.append(_Change(path, before.data if before else None, _digest(after.data)))
        if before is None:
            lines = len(split_lines(after.data.decode()))
            return ToolResult(f"created {shown(path)}, {plural(lines, 'line')}", ok=True)
        single = after.first_line == after.last_line
        where = f"line {after.first_line}" if single else f"lines {after.first_line}-{after.last_line}"
        return ToolResult(f"edited {shown(path)}, {where}", ok=True)

    def _planned_edit(self, arguments: Mapping[str, str]) -> tuple[PurePosixPath, FileContent | None, Edited]:
        path = self._files.relative(arguments["file_path"])
        new = arguments["new_string"]
        if "old_string" in arguments:
            before = self._files.read(path)
            after = replace_once(before.data, arguments["old_string"], new, shown(path))
        else:
            self._files.refuse_existing(path)
            refuse_line_numbers(new, "new_string")
            before, after = None, Edited(encode(new, "new_string"), 1, 1)
        if len(after.data) > MAX_FILE_BYTES:
            raise ToolError(f"file would be too large ({len(after.data)} bytes, at most {MAX_FILE_BYTES})")
        return path, before, after

    def _write(self, path: PurePosixPath, data: bytes, before: FileContent | None) -> None:
        self._files.write(path, data, before)
        self._seen[path] = _digest(data)

    def _grep(self, arguments: Mapping[str, str]) -> ToolResult:
        path = self._files.relative(arguments.get("path", "."))
        return ToolResult(grep(self._files, arguments["pattern"], path, self.limits.grep_matches), ok=True)

    def _bash(self, arguments: Mapping[str, str]) -> ToolResult:
        if self.sandbox is None:
            raise ToolError("Bash is off: there is no sandbox")
        command = arguments["command"]
        encode(command, "command")
        if "\0" in command or not command.strip():
            raise ToolError("command is empty" if "\0" not in command else "command holds a zero byte")
        limits = self.limits.bash
        completed = self.sandbox.run(command, self._files.root, limits, self.policy.writable)
        return ToolResult(_bash_text(completed, limits), ok=completed.exit_code == 0 and not completed.timed_out)


def _bash_text(completed: Completed, limits: Limits) -> str:
    rows = [completed.output.rstrip("\n") or "(no output)"]
    if completed.timed_out:
        rows.append(f"timed out after {limits.wall_seconds:g} seconds")
    elif completed.flooded:
        rows.append(f"stopped after {limits.flood_bytes} bytes of output")
    elif completed.exceeded:
        rows.append(f"stopped: {completed.exceeded}")
    elif completed.exit_code != 0:
        rows.append(f"exit code {completed.exit_code}")
    return "\n".join([*rows, *completed.notes])


def capped(text: str, limit: int) -> str:
    """The text, or its head and tail with a marker between that says how much is missing; never over ``limit``."""
    if len(text) <= limit:
        return text
    # The marker's own length depends on the number in it; reserving for the whole text's length is enough.
    room = limit - len(f"\n... {len(text)} characters left out ...\n")
    head, tail = (room + 1) // 2, room // 2
    return f"{text[:head]}\n... {len(text) - head - tail} characters left out ...\n{text[len(text) - tail :]}"


def _positive(arguments: Mapping[str, str], name: str, default: int) -> int:
    if name not in arguments:
        return default
    value = arguments[name]
    if not WHOLE_NUMBER.fullmatch(value):
        raise ToolError(f"{name} must be a whole number")
    if int(value) < 1:
        raise ToolError(f"{name} must be 1 or more")
    return int(value)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
