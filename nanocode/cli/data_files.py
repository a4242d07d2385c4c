"""Rows of ``conversations.jsonl`` and ``pairs.jsonl``, read for people."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanocode.constitution.wire import is_text
from nanocode.conversation import Message, from_json

NAMES = ("conversations.jsonl", "pairs.jsonl")
REPORT = "report.json"


class DataFileError(ValueError):
    """A file that is not what these commands read. The message says where and what."""


def find_file(path: Path) -> Path:
    """The file itself, or the one of `NAMES` in a folder. Raises DataFileError."""
    if path.is_dir():
        found = [path / name for name in NAMES if (path / name).is_file()]
        if len(found) != 1:
            raise DataFileError(f"{path} holds {len(found)} of {' and '.join(NAMES)}: name one file")
        return found[0]
    if not path.is_file():
        raise DataFileError(f"there is no file {path}: give a conversations.jsonl or pairs.jsonl, or its folder")
    return path


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """One row after another. Raises DataFileError for a line that is no row."""
    with path.open(encoding="utf-8-sig", newline="\n") as lines:
        try:
            for number, line in enumerate(lines, 1):
                yield _row(line, f"{path} line {number}")
        except UnicodeDecodeError as error:
            raise DataFileError(f"{path} is not UTF-8: {error}") from None


def _row(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataFileError(f"{where} is not JSON: {error}") from None
    if not isinstance(row, dict) or not sides_of(row):
        raise DataFileError(f"{where} has neither messages nor chosen and rejected")
    provenance = row.get("provenance") or {}
    critiques = provenance.get("critiques") or [] if isinstance(provenance, dict) else None
    if not isinstance(critiques, list) or not all(isinstance(each, dict) for each in critiques):
        raise DataFileError(f"{where}: provenance must be an object, and its critiques a list of them")
    if not is_text(json.dumps(row, ensure_ascii=False)):
        raise DataFileError(f"{where} holds half of a surrogate pair, which is no text")
    return row


def sides_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """The messages of a conversation under "", those of a pair under "chosen" and "rejected"; none for other rows."""
    if isinstance(row.get("messages"), list):
        return {"": row["messages"]}
    sides = {side: row[side].get("messages") for side in ("chosen", "rejected") if isinstance(row.get(side), dict)}
    return sides if len(sides) == 2 and all(isinstance(messages, list) for messages in sides.values()) else {}


def conversation_of(row: Mapping[str, Any], messages: Any) -> list[Message]:
    """The messages. Raises DataFileError, naming the row."""
    try:
        return from_json(messages)
    except ValueError as error:  # a ConversationError, or a role that there is not
        raise DataFileError(f"row {row.get('id')}: {error}") from None


def report_beside(path: Path) -> dict[str, Any]:
    """``report.json`` of the same folder: what was dropped on the way. Empty without one."""
    report = path.parent / REPORT
    if not report.is_file():
        return {}
    try:
        found = json.loads(report.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataFileError(f"{report} is not JSON: {error}") from None
    return found if isinstance(found, dict) else {}
