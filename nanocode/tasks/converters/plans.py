"""What passes between the parts: a row of a set, the plan that a converter makes of it, and what became of it.

A plan holds everything but tool results: the workspace at the start, the user's and the assistant's turns, and the
workspace that must come out. Results are filled in by running the calls (`nanocode.tasks.converters.convert`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from nanocode.conversation import Message

MIN_CODE_CHARACTERS = 20


class MissingColumn(ValueError):
    """A set without a column that its converter reads. The message names it and the columns there are."""


class Drop(Exception):
    """A row that makes no conversation: `reason` is what is counted, `detail` what it was in this row."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Row:
    """One row of a set. `origin` names its place, the same on every machine; `fault` says why it could not be read."""

    origin: str
    licence: str
    values: Mapping[str, Any] = field(default_factory=dict)
    fault: str | None = None


@dataclass(frozen=True)
class Plan:
    """`turns` are user and assistant messages; every call in them will be executed.

    expected: the workspace after the last call, every file byte for byte; None where the set does not say.
    may_fail: numbers of calls (from 0) that the set itself records as failed.
    notes: what was done to the row's own words, for its provenance.
    """

    variant: str
    files: Mapping[str, str]
    turns: tuple[Message, ...]
    expected: Mapping[str, str] | None = None
    may_fail: frozenset[int] = frozenset()
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Limits:
    """What a converter lets through: lines of a file, context lines of an edit, ASCII share of the prose."""

    max_code_lines: int = 200
    max_context_lines: int = 10
    min_ascii: float = 0.85


class Converter(Protocol):
    """Reads the rows of one kind of set."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that every row must have."""
        ...

    @property
    def id_columns(self) -> tuple[str, ...]:
        """Columns that name a row within its set, where it has them: the first one counts."""
        ...

    def plan(self, values: Mapping[str, Any], limits: Limits) -> Plan:
        """Raises Drop."""
        ...


@dataclass(frozen=True)
class Converted:
    """A conversation with real tool results, and the row and plan that it was made of."""

    row: Row
    plan: Plan
    row_id: str | None
    messages: tuple[Message, ...]


@dataclass(frozen=True)
class Dropped:
    """A row that made none, with the reason to count it under."""

    row: Row
    reason: str
    detail: str = ""


def text_of(value: Any) -> str:
    """A column's text with LF line ends. Raises Drop for anything else, and for what no text file may hold."""
    if not isinstance(value, str):
        raise Drop("not text", type(value).__name__)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Drop("not UTF-8") from None
    text = value.replace("\r\n", "\n")
    if "\0" in text or "\r" in text:
        raise Drop("control characters")
    return text


def check_prose(text: str, limits: Limits) -> None:
    """Raise Drop for prose that is mostly not in the Latin alphabet: a cheap test of the language."""
    letters = sum(character.isascii() for character in text)
    if text and letters < limits.min_ascii * len(text):
        raise Drop("prose is not ASCII")
