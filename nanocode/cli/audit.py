"""`nanocode audit`: read an agent's log, once it is shown to be what was written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nanocode.agent.audit import verify
from nanocode.agent.terminal_text import visible

_SHOWN_CHARACTERS = 60


def audit(
    log: Annotated[Path, typer.Argument(help="A session's log, as `nanocode agent` keeps them.")],
    json_output: Annotated[bool, typer.Option("--json", help="Print the verified lines as they are.")] = False,
) -> None:
    """Verify the hash chain of an agent's log and list its calls; exit code 1 names the first line that is wrong."""
    found = verify(log)
    if json_output:
        for entry in found.entries:
            typer.echo(json.dumps(entry, ensure_ascii=False))
        return
    console = Console(highlight=False)
    table = Table("time (UTC)", "tool", "arguments", "decision", "rule", "ok", box=None, pad_edge=False)
    answered = {entry["call"] for entry in found.entries if entry["kind"] == "call"}
    for entry in found.entries:
        if entry["kind"] in ("call", "undo") or (entry["kind"] == "intent" and entry["call"] not in answered):
            table.add_row(*(Text(visible(cell)) for cell in _row(entry)))
    if table.row_count:
        console.print(table)
    torn = "; the last line is torn, as a crash leaves it" if found.torn_bytes else ""
    console.print(f"{log}: {len(found.entries)} lines, none altered{torn}", soft_wrap=True)


def _row(entry: Mapping[str, Any]) -> tuple[str, ...]:
    time = datetime.fromtimestamp(entry["time"], UTC).strftime("%Y-%m-%d %H:%M:%S")
    if entry["kind"] == "undo":
        return time, "undo", f"of call {entry['undone']}", "", "", "yes"
    arguments = " ".join(f"{name}={value!r}" for name, value in entry["arguments"].items())
    if len(arguments) > _SHOWN_CHARACTERS:
        arguments = f"{arguments[:_SHOWN_CHARACTERS]}..."
    ended = {True: "yes", False: "no"}[entry["ok"]] if entry["kind"] == "call" else "was killed in it"
    return time, entry["tool"], arguments, entry["decision"], entry["rule"], ended
