"""Answers, and where those of a ledger file lie: a table on disk, so that memory does not grow with their number.

The table is SQLite's, beside the ledger, in a file without a name that goes with the process. It is filled whenever a
ledger is opened, from the records that opening verifies anyway, so that it can be neither stale nor torn. It holds
digests of 64 bits: two keys may share one, and the whole key of a record is compared when it is read.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanocode.constitution.append_file import LedgerError, Place
from nanocode.constitution.faults import usage_of

_DIGEST_BYTES = 8
_CACHE_KIB = 2048
_SET_UP = (
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
    f"PRAGMA cache_size = -{_CACHE_KIB}",
    "CREATE TABLE answers (offset INTEGER PRIMARY KEY, length INTEGER, request INTEGER, question INTEGER)",
    "CREATE INDEX by_request ON answers (request)",
    "CREATE INDEX by_question ON answers (question)",
    "BEGIN",  # and never an end: what does not fit into the cache goes to the file, and nothing is there to last
)


@dataclass(frozen=True)
class Answer:
    """A raw completion. `question` and `bound` (in tokens) are empty in records that were written without them."""

    key: str
    raw: str
    question: str = ""
    bound: int | None = None

    def fits(self, bound: int) -> bool:
        """Whether it answers the same question under another `bound`, too."""
        body = json.loads(self.raw)
        if body["choices"][0].get("finish_reason") == "length":
            return False
        if self.bound is not None and self.bound <= bound:
            return True
        usage = usage_of(body)
        return usage is not None and 0 < usage[1] <= bound


def answer_of(record: Any, path: Path) -> Answer:
    """A record of the ledger file at `path`, with or without question and bound. Raises LedgerError for any other."""
    if isinstance(record, list) and len(record) in (2, 4) and all(isinstance(each, str) for each in record[:3]):
        return Answer(*record)
    raise LedgerError(f"{path} holds a record that is no answer: it is of another version: move it away")


class AnswerTable:
    """The answers of one file by request and by question; used by one thread.

    `read` reads the answer at a place; `folder` is where the table lies. Methods raise LedgerError when there is no
    room for it, and what `read` raises.
    """

    def __init__(self, read: Callable[[Place], Answer], folder: Path) -> None:
        self._read, self._folder, self._count = read, folder, 0
        descriptor, name = tempfile.mkstemp(prefix=".answers-", dir=folder)
        os.close(descriptor)
        try:
            self._table = sqlite3.connect(name, isolation_level=None)
            for statement in _SET_UP:
                self._table.execute(statement)
        except sqlite3.Error as error:
            raise self._failure(error) from None
        finally:
            Path(name).unlink()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Answer]:
        """All answers, in the order of the file."""
        return self._answers("SELECT offset, length FROM answers ORDER BY offset")

    def add(self, place: Place, key: str, question: str) -> None:
        """A record; the first one under a key stays."""
        if self.answer(key) is not None:
            return
        row = (place.offset, place.length, _digest(key), _digest(question) if question else None)
        try:
            self._table.execute("INSERT INTO answers VALUES (?, ?, ?, ?)", row)
        except sqlite3.Error as error:
            raise self._failure(error) from None
        self._count += 1

    def answer(self, key: str) -> Answer | None:
        """The answer to a request."""
        found = self._answers("SELECT offset, length FROM answers WHERE request = ? ORDER BY offset", _digest(key))
        return next((answer for answer in found if answer.key == key), None)

    def answers_to(self, question: str) -> Iterator[Answer]:
        """The answers to a question, under whatever bounds, in the order of the file."""
        found = self._answers(
            "SELECT offset, length FROM answers WHERE question = ? ORDER BY offset", _digest(question)
        )
        return (answer for answer in found if answer.question == question)

    def close(self) -> None:
        """Give the room back."""
        self._table.close()

    def _answers(self, query: str, *values: int) -> Iterator[Answer]:
        try:
            for offset, length in self._table.execute(query, values):
                yield self._read(Place(offset, length))
        except sqlite3.Error as error:
            raise self._failure(error) from None

    def _failure(self, error: sqlite3.Error) -> LedgerError:
        return LedgerError(f"{self._folder}: the table of answers cannot be kept there ({error}): free some space")


def _digest(key: str) -> int:
    short = hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_DIGEST_BYTES).digest()
    return int.from_bytes(short, "big", signed=True)
