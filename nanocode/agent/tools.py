"""The four tools: Read, Edit, Grep, Bash. A call goes in, a short text comes out, and never an exception.

Result texts are a contract: training data holds them, made by this code, and a model that reads a few hundred tokens
has to make sense of them. What went wrong starts with ``error: ``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from nanocode.agent.editing import Edited, decode, encode, numbered, plural, refuse_line_numbers, replace_once
from nanocode.agent.files import MAX_FILE_BYTES, SHOWN_PATH_CHARACTERS, FileContent, ToolError, Workspace, shown
from nanocode.agent.journal import Entry, Journal
from nanocode.agent.matching import split_lines
from nanocode.agent.policy import Decision, Policy, refusal
from nanocode.agent.results import ToolResult, bash_result, capped, malformed_result, valid_text
from nanocode.agent.rules import Rules
from nanocode.agent.sandbox import Limits, SandboxUnavailable, Shell
from nanocode.agent.search import grep
from nanocode.agent.undo import sha256
from nanocode.conversation import ToolCall

if TYPE_CHECKING:
    from nanocode.agent.audit import AuditLog

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
class ToolLimits:
    """Bounds of results; characters of text, matches of Grep, and those of a Bash command."""

    result_characters: int = 4_000
    grep_matches: int = 50
    bash: Limits = field(default_factory=Limits)


@dataclass(frozen=True)
class _Permitted(Workspace):
    """The workspace as a search may see it: files under the user's deny rules are not there."""

    rules: Rules

    def files(self, path: PurePosixPath, skip: frozenset[str]) -> Iterator[tuple[str, bytes]]:
        for name, data in super().files(path, skip):
            # A name that could not be shown as it is could hide what a rule looks for.
            whole = len(name) <= SHOWN_PATH_CHARACTERS and "\ufffd" not in name
            if whole and self.rules.denying(name) is None:
                yield name, data


@dataclass
class Toolbox:
    """The tools over one workspace under one policy. ``sandbox`` None means that Bash is refused.

    With ``audit`` every call is on disk before it runs and after, and what edits and commands changed can be undone,
    in a later process too; the log must lie outside of the workspace (AuditError).
    """

    workspace: Path
    policy: Policy
    sandbox: Shell | None
    limits: ToolLimits = field(default_factory=ToolLimits)
    audit: AuditLog | None = None
    _seen: dict[PurePosixPath, str] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self._files = Workspace.at(self.workspace)
        self._journal = Journal(self._files, self.audit)

    def execute(self, call: ToolCall) -> ToolResult:
        """Run one call. Whatever is wrong with it, or goes wrong in it, becomes an ``error: `` result.

        Raises SandboxUnavailable when the sandbox that is there breaks, and AuditError when the log cannot be written:
        what a model reads must not depend on that.
        """
        entry, result = self._journal.begin(call), None
        try:
            result = self._attempt(call, entry)
            return result
        finally:
            entry.end(result)

    def refuse_malformed(self, salvaged: ToolCall, fault: str) -> ToolResult:
        """The answer to a reply that is no call but holds what was salvaged; written to the log as any call is."""
        entry = self._journal.begin(salvaged)
        entry.decision = Decision("deny", f"malformed: {fault}")
        result = self._shown(malformed_result(fault))
        entry.end(result)
        return result

    def undo(self) -> str | None:
        """Take back the last edit or command; the files restored, or None without one.

        Raises ToolError, with nothing changed, when a file changed since. The model has to read such a file again
        before it can edit it.
        """
        return self._journal.undo()

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

    def _attempt(self, call: ToolCall, entry: Entry) -> ToolResult:
        try:
            self._check_arguments(call)
            entry.decision = self._decide(call)
            if entry.decision.verdict == "deny":
                raise ToolError(refusal(entry.decision))
            result = self._tools()[call.name](call.arguments, entry)
        except ToolError as error:
            result = ToolResult(f"error: {error}", ok=False)
        except SandboxUnavailable as error:
            if self.sandbox is not None:
                raise
            result = ToolResult(f"error: {error}", ok=False)
        except OSError as error:
            result = ToolResult(f"error: {(error.strerror or 'the system refused').lower()}", ok=False)
        return self._shown(result)

    def _shown(self, result: ToolResult) -> ToolResult:
        return replace(result, text=capped(valid_text(result.text), self.limits.result_characters))

    def _tools(self) -> Mapping[str, Callable[[Mapping[str, str], Entry], ToolResult]]:
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

    def _decide(self, call: ToolCall) -> Decision:
        argument = call.arguments.get("path" if call.name == "Grep" else "file_path")
        path = None if argument is None else str(self._files.relative(argument))
        if call.name != "Edit" or self.policy.decide(call, path).verdict != "ask":
            return self.policy.settle(call, path)
        # An edit that would fail needs no question, and a yes is meant for the edit that was asked about.
        edited, before, _ = self._planned_edit(call.arguments)
        decision = self.policy.settle(call, path)
        if decision.verdict == "allow":
            _, now, _ = self._planned_edit(call.arguments)
            if (now and now.data) != (before and before.data):
                raise ToolError(f"{shown(edited)} changed since it was read; read it again")
        return decision

    def _read(self, arguments: Mapping[str, str], entry: Entry) -> ToolResult:
        path = self._files.relative(arguments["file_path"])
        offset = _positive(arguments, "offset", 1)
        limit = _positive(arguments, "limit", DEFAULT_READ_LINES)
        entry.intend()
        content = self._files.read(path)
        self._seen[path] = sha256(content.data)
        text = decode(content.data, shown(path))
        return ToolResult(numbered(text, shown(path), offset, limit), ok=True)

    def _edit(self, arguments: Mapping[str, str], entry: Entry) -> ToolResult:
        path, before, after = self._planned_edit(arguments)
        if before is not None and self._seen.get(path, sha256(before.data)) != sha256(before.data):
            raise ToolError(f"{shown(path)} changed since it was read; read it again")
        entry.edit(str(path), before, after.data)
        self._files.write(path, after.data, before)
        self._seen[path] = sha256(after.data)
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

    def _grep(self, arguments: Mapping[str, str], entry: Entry) -> ToolResult:
        path = self._files.relative(arguments.get("path", "."))
        entry.intend()
        rules = self.policy.rules
        files = _Permitted(self._files.root, self._files.given, rules) if rules.deny else self._files
        return ToolResult(grep(files, arguments["pattern"], path, self.limits.grep_matches), ok=True)

    def _bash(self, arguments: Mapping[str, str], entry: Entry) -> ToolResult:
        if self.sandbox is None:
            raise ToolError("Bash is off: there is no sandbox")
        command = arguments["command"]
        encode(command, "command")
        if "\0" in command or not command.strip():
            raise ToolError("command is empty" if "\0" not in command else "command holds a zero byte")
        if not self._files.root.is_dir():
            raise ToolError("the workspace is gone")
        limits, writable = self.limits.bash, self.policy.writable
        with self._journal.watched(entry, writable):
            completed = self.sandbox.run(command, self._files.root, limits, writable)
        return bash_result(completed, limits)


def _positive(arguments: Mapping[str, str], name: str, default: int) -> int:
    if name not in arguments:
        return default
    value = arguments[name]
    if not WHOLE_NUMBER.fullmatch(value):
        raise ToolError(f"{name} must be a whole number")
    if int(value) < 1:
        raise ToolError(f"{name} must be 1 or more")
    return int(value)
