"""Rows of chat messages, with tool calls as OpenAI's API has them or as ours: calls become calls of our four tools.

A row may bring its workspace as a column ``files`` (path to content). What its tools once answered is not kept: every
call is executed again, and a row whose call fails although the set does not record a failure is dropped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from nanocode.agent.tools import TOOLS
from nanocode.conversation import Message, ToolCall
from nanocode.tasks.converters.plans import Drop, Limits, Plan, check_prose, text_of

# What other projects call these tools and their arguments, case and underscores aside.
_TOOL_NAMES = {
    "Read": ("read", "readfile", "view", "viewfile", "openfile", "cat"),
    "Edit": ("edit", "editfile", "strreplace", "create", "createfile", "write", "writefile"),
    "Grep": ("grep", "search", "searchfiles", "greps", "ripgrep"),
    "Bash": ("bash", "shell", "runcommand", "executebash", "executecommand", "terminal"),
}
_ARGUMENT_NAMES = {
    "file_path": ("filepath", "path", "file", "filename", "targetfile"),
    "old_string": ("oldstring", "oldstr", "old", "oldtext"),
    "new_string": ("newstring", "newstr", "new", "newtext", "content", "contents", "filetext", "text"),
    "pattern": ("pattern", "query", "regex"),
    "path": ("path", "directory", "dir", "filepath"),
    "command": ("command", "cmd"),
    "offset": ("offset", "startline"),
    "limit": ("limit",),
}
_TOOL_OF = {alias: tool for tool, aliases in _TOOL_NAMES.items() for alias in aliases}
_RESULT_ROLES = ("tool", "tool_result", "function")
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.S)
_FAILURE = re.compile(r"\s*(?:error|traceback)\b", re.I)
_EXIT_CODE = re.compile(r"exit code [1-9]\d*\s*\Z")


class MessagesConverter:
    """Reads rows with a column ``messages``."""

    columns: tuple[str, ...] = ("messages",)
    id_columns: tuple[str, ...] = ("id",)

    def plan(self, values: Mapping[str, Any], limits: Limits) -> Plan:
        """Raises Drop."""
        entries = values["messages"]
        if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
            raise Drop("not messages")
        spoken = [entry for entry in entries if entry.get("role") not in ("system", "developer")]
        notes = {"left_out": "system message"} if len(spoken) < len(entries) else {}
        turns, failed = _turns(spoken)
        _check_turns(turns)
        words = " ".join(_FENCED.sub("", turn.content) for turn in turns)
        check_prose(words, limits)
        return Plan("messages", _files(values.get("files")), tuple(turns), may_fail=failed, notes=notes)


def _turns(entries: Sequence[Mapping[str, Any]]) -> tuple[list[Message], frozenset[int]]:
    """User and assistant turns with one call each at most, and the numbers of the calls recorded as failed."""
    turns: list[Message] = []
    awaited: dict[str, int] = {}
    order: list[str] = []
    failed: set[int] = set()
    calls = 0
    for entry in entries:
        role = entry.get("role")
        if role in _RESULT_ROLES:
            name = _answered(entry, order)
            if _failed(_content(entry)):
                failed.add(awaited[name])
            order.remove(name)
            continue
        if order:
            raise Drop("a tool call without a result")
        if role == "user":
            turns.append(Message("user", _content(entry)))
        elif role == "assistant":
            awaited = {}
            for message, name in _assistant(entry):
                turns.append(message)
                if message.tool_call is not None:
                    awaited[name], calls = calls, calls + 1
            order = list(awaited)
        else:
            raise Drop("unknown role", repr(role)[:40])
    if order:
        raise Drop("a tool call without a result")
    return turns, frozenset(failed)


def _answered(entry: Mapping[str, Any], order: Sequence[str]) -> str:
    """Which call a result answers: the one it names, else the first that is still open."""
    name = entry.get("tool_call_id")
    if name is None and order:
        return order[0]
    if not isinstance(name, str) or name not in order:
        raise Drop("a tool result without a call")
    return name


def _failed(result: str) -> bool:
    return bool(_FAILURE.match(result) or _EXIT_CODE.search(result))


def _assistant(entry: Mapping[str, Any]) -> Iterator[tuple[Message, str]]:
    """One message a call, the words with the first; each with the id of its call."""
    calls = entry.get("tool_calls") or ([entry["tool_call"]] if entry.get("tool_call") else [])
    if not isinstance(calls, list):
        raise Drop("malformed tool call")
    words = _content(entry)
    if not calls:
        yield Message("assistant", words), ""
    for number, call in enumerate(calls):
        if not isinstance(call, dict):
            raise Drop("malformed tool call")
        function = call.get("function", call)
        if not isinstance(function, dict):
            raise Drop("malformed tool call")
        name = str(call.get("id") or f"call {number}")
        yield Message("assistant", words if number == 0 else "", _call(function)), name


def _call(function: Mapping[str, Any]) -> ToolCall:
    name = function.get("name")
    if not isinstance(name, str):
        raise Drop("malformed tool call")
    tool = _TOOL_OF.get(_plain(name))
    if tool is None:
        raise Drop(f"unknown tool {name[:40]}")
    arguments = function.get("arguments", {})
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            raise Drop("malformed tool call") from None
    if not isinstance(arguments, dict):
        raise Drop("malformed tool call")
    return ToolCall(tool, dict(_argument(tool, key, value) for key, value in arguments.items() if value is not None))


def _argument(tool: str, key: str, value: Any) -> tuple[str, str]:
    spec = TOOLS[tool]
    for name in (*spec.required, *spec.optional):
        if _plain(key) == _plain(name) or _plain(key) in _ARGUMENT_NAMES[name]:
            if isinstance(value, int) and not isinstance(value, bool):
                return name, str(value)
            return name, text_of(value)
    raise Drop(f"{tool} has no argument {key[:40]}")


def _content(entry: Mapping[str, Any]) -> str:
    content = entry.get("content")
    if content is None:
        return ""
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in content]
        return "".join(text_of(part) for part in parts)
    return text_of(content)


def _files(value: Any) -> dict[str, str]:
    """The workspace of a row: a table of path and content, or as parquet has it a list of pairs."""
    if value is None:
        return {}
    try:
        pairs = list(value.items()) if isinstance(value, dict) else [tuple(pair) for pair in value]
        # Parquet gives every row of a struct all the columns that any row has.
        return {text_of(path): text_of(content) for path, content in pairs if content is not None}
    except (TypeError, ValueError):
        raise Drop("files are no table of path and content") from None


def _check_turns(turns: Sequence[Message]) -> None:
    if not turns or turns[0].role != "user":
        raise Drop("does not open with the user")
    if turns[-1].role != "assistant" or turns[-1].tool_call is not None or not turns[-1].content.strip():
        raise Drop("does not end with an answer")
    for before, after in pairwise(turns):
        called = before.tool_call is not None
        if after.role == "user" and (before.role == "user" or called):
            raise Drop("turns out of order")
        if after.role == "assistant" and before.role == "assistant" and not called:
            raise Drop("turns out of order")


def _plain(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "")
