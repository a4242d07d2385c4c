"""The user's own rules: paths that no tool may touch, commands that may not run, and calls that need no question.

They come from a TOML file of the user's, never from the workspace: whoever writes a repository must not decide what the
agent may do in it.

    deny = ["*.pem", "secrets/*", "Bash(git push*)"]

    [allow]
    Edit = ["src/*"]
    Bash = ["make test"]

A pattern without a slash fits any file or folder of that name; one with a slash fits from the workspace's root, where
``*`` crosses folders and a leading ``**/`` means anywhere. What fits a folder fits everything in it. Case is ignored in
deny rules. What a deny rule for Bash fits is told in `nanocode.agent.command_rules`; an allow rule for it is the exact
command, because no shell text is a boundary.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from nanocode.conversation import ToolCall

TOOLS_WITH_RULES = ("Read", "Edit", "Grep", "Bash")
_OF_A_TOOL = re.compile(f"({'|'.join(TOOLS_WITH_RULES)})\\((.*)\\)", re.DOTALL)


class RulesError(ValueError):
    """A file of rules that cannot be used. One line: what, where and the cure."""


@dataclass(frozen=True)
class Rules:
    """``deny`` has patterns of paths, ``deny_commands`` those of commands. ``allow`` has those of each tool: paths, or
    whole commands for Bash.
    """

    deny: tuple[str, ...] = ()
    allow: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    deny_commands: tuple[str, ...] = ()

    def denying(self, path: str) -> str | None:
        """The first pattern that forbids ``path`` (relative to the workspace, normalised), or None."""
        folded = path.casefold()
        return next((pattern for pattern in self.deny if fits(folded, pattern.casefold())), None)

    def allowing(self, call: ToolCall, path: str | None) -> str | None:
        """The first pattern that allows ``call`` on ``path`` without a question, or None."""
        patterns = self.allow.get(call.name, ())
        if call.name == "Bash":
            command = call.arguments.get("command")
            return next((pattern for pattern in patterns if pattern == command), None)
        return next((pattern for pattern in patterns if path is not None and fits(path, pattern)), None)


def fits(path: str, pattern: str) -> bool:
    """Whether the path, or a folder above it, fits the pattern."""
    anywhere = "/" not in pattern or pattern.startswith("**/")
    wanted = pattern.removeprefix("**/").rstrip("/")
    parts = PurePosixPath(path).parts
    starts = range(len(parts)) if anywhere else range(1)
    return any(
        fnmatchcase("/".join(parts[start:end]), wanted) for start in starts for end in range(start + 1, len(parts) + 1)
    )


def load_rules(path: Path, workspace: Path) -> Rules:
    """Read a user's file of rules. Raises RulesError when it lies in the workspace or cannot be used."""
    if path.resolve().is_relative_to(workspace.resolve()):
        raise RulesError(f"{path} lies in the workspace: rules come from you, keep them outside of {workspace}")
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RulesError(f"{path} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RulesError(f"{path} is not TOML: {error}") from None
    if unknown := sorted(set(document) - {"deny", "allow"}):
        raise RulesError(f"{path}: unknown key {unknown[0]!r}: there are deny and allow")
    allow = document.get("allow", {})
    if not isinstance(allow, dict):
        raise RulesError(f"{path}: allow must be a table of tools: [allow]")
    if unknown := sorted(set(allow) - set(TOOLS_WITH_RULES)):
        raise RulesError(f"{path}: unknown tool {unknown[0]!r} in allow: there are {', '.join(TOOLS_WITH_RULES)}")
    paths, commands = _denied(document.get("deny", []), f"{path}: deny")
    return Rules(
        paths,
        {
            tool: (_texts if tool == "Bash" else _paths)(patterns, f"{path}: allow.{tool}")
            for tool, patterns in allow.items()
        },
        commands,
    )


def _denied(value: Any, where: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Patterns of paths, and those of commands: ``Bash(...)``."""
    paths: list[str] = []
    commands: list[str] = []
    for pattern in _texts(value, where):
        tool, inner = found.groups() if (found := _OF_A_TOOL.fullmatch(pattern.strip())) else ("", pattern)
        if tool in ("Read", "Edit", "Grep"):
            raise RulesError(f"{where}: {pattern!r}: a path is denied to all tools: write {inner!r}")
        if tool == "Bash" and not inner.strip():
            raise RulesError(f"{where}: {pattern!r} names no command: write 'Bash(git push*)', or 'Bash(*)' for all")
        (commands if tool == "Bash" else paths).append(" ".join(inner.split()) if tool == "Bash" else pattern)
    return _paths(paths, where), tuple(commands)


def _paths(value: Any, where: str) -> tuple[str, ...]:
    patterns = _texts(value, where)
    if absolute := [pattern for pattern in patterns if pattern.startswith("/")]:
        raise RulesError(f"{where}: {absolute[0]!r} is absolute: patterns are relative to the workspace")
    return patterns


def _texts(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(text, str) and text.strip() for text in value):
        raise RulesError(f"{where} must be a list of texts that are not empty")
    return tuple(value)
