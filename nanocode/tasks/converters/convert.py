"""Rows in, conversations out: plans are carried out in a scratch workspace, so that every tool result is a real one."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from nanocode.agent.files import ToolError, Workspace
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ConversationError, Message, check_turns
from nanocode.tasks.converters.instructions import EVOL_CODEALPACA, SELF_OSS_INSTRUCT, TULU_CODE
from nanocode.tasks.converters.messages import MessagesConverter
from nanocode.tasks.converters.plans import Converted, Converter, Drop, Dropped, Limits, MissingColumn, Plan, Row

CONVERTERS: Mapping[str, Converter] = {
    "tulu_code": TULU_CODE,
    "self_oss_instruct": SELF_OSS_INSTRUCT,
    "evol_codealpaca": EVOL_CODEALPACA,
    "messages": MessagesConverter(),
}

ToolboxFactory = Callable[[Path], Toolbox]


def convert(
    rows: Iterable[Row],
    converter: Converter,
    toolbox_factory: ToolboxFactory,
    limits: Limits | None = None,
    scratch: Path | None = None,
) -> Iterator[Converted | Dropped]:
    """One outcome a row, in order and one at a time.

    `toolbox_factory` gives the tools of a workspace; workspaces are made in `scratch`, which had better lie in memory.
    Raises MissingColumn for a row that lacks a column of the set, SandboxUnavailable when Bash is needed and broken.
    """
    for row in rows:
        if row.fault is not None:
            yield Dropped(row, row.fault)
            continue
        _check_columns(row, converter)
        try:
            plan = converter.plan(row.values, limits or Limits())
            messages = executed(plan, toolbox_factory, scratch)
        except Drop as drop:
            yield Dropped(row, drop.reason, drop.detail)
            continue
        yield Converted(row, plan, _row_id(row.values, converter), messages)


def executed(plan: Plan, toolbox_factory: ToolboxFactory, scratch: Path | None = None) -> tuple[Message, ...]:
    """The plan's turns with the result of every call behind it. Raises Drop.

    A plan with Bash in it is carried out twice: what a command prints must not depend on when it is run.
    """
    messages = _carry_out(plan, toolbox_factory, scratch)
    uses_bash = any(turn.tool_call is not None and turn.tool_call.name == "Bash" for turn in plan.turns)
    if uses_bash and _carry_out(plan, toolbox_factory, scratch) != messages:
        raise Drop("results are not repeatable")
    try:
        check_turns(messages)
    except ConversationError as error:
        raise Drop("turns out of order", str(error)) from None
    return messages


def _carry_out(plan: Plan, toolbox_factory: ToolboxFactory, scratch: Path | None) -> tuple[Message, ...]:
    with tempfile.TemporaryDirectory(prefix="nanocode-convert-", dir=scratch) as folder:
        workspace = Path(folder)
        _write(plan.files, workspace)
        toolbox = toolbox_factory(workspace)
        messages: list[Message] = []
        calls = 0
        for turn in plan.turns:
            messages.append(turn)
            if turn.tool_call is None:
                continue
            result = toolbox.execute(turn.tool_call)
            if not result.ok and calls not in plan.may_fail:
                raise Drop(f"{turn.tool_call.name} fails", result.text[:200])
            messages.append(Message("tool_result", result.text))
            calls += 1
        if plan.expected is not None and _files_in(workspace) != _encoded(plan.expected):
            raise Drop("the end state is not the expected one")
    return tuple(messages)


def _write(files: Mapping[str, str], workspace: Path) -> None:
    """Through the door that the tools use, since paths come from the set. Raises Drop."""
    inside = Workspace.at(workspace)
    try:
        for path, content in files.items():
            inside.write(inside.relative(path), content.encode(), None)
    except ToolError as error:
        raise Drop("files cannot be written", str(error)) from None


def _files_in(workspace: Path) -> dict[str, bytes]:
    return {
        path.relative_to(workspace).as_posix(): path.read_bytes()
        for path in workspace.rglob("*")
        if path.is_file() and not path.is_symlink()
    }


def _encoded(files: Mapping[str, str]) -> dict[str, bytes]:
    return {path: content.encode() for path, content in files.items()}


def _check_columns(row: Row, converter: Converter) -> None:
    missing = [column for column in converter.columns if column not in row.values]
    if missing:
        there = ", ".join(sorted(row.values)) or "(none)"
        raise MissingColumn(f"{row.origin} has no column {' or '.join(map(repr, missing))}; there are: {there}")


def _row_id(values: Mapping[str, Any], converter: Converter) -> str | None:
    named = (values.get(column) for column in converter.id_columns)
    return next((str(value) for value in named if value is not None), None)
