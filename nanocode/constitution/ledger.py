"""The request ledger: every finished completion, on disk before anybody reads it, so that none is ever paid for
twice.

One append-only file (`nanocode.constitution.append_file`) of records: the request's key, the raw response, and what it
takes to find that answer for the same question under another bound: the question's key and the bound it was given
under. Records without the last two are read as well.

A bound decides when an answer is cut and not what it says. An answer that ended by itself is therefore the answer under
every bound that is not smaller than its length; one that was cut is the answer under that one bound alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nanocode.constitution.answer_table import Answer, AnswerTable, answer_of
from nanocode.constitution.append_file import AppendFile, LedgerError, Place

__all__ = ["Answer", "Ledger", "LedgerError", "question_key", "request_key"]

BOUNDS = frozenset({"max_tokens"})


def request_key(request: Mapping[str, Any], sample: str, template: str) -> str:
    """sha256 of the canonical JSON of everything that decides a completion.

    `request` is the whole body (model, sampling fields, messages, tools, schema); `sample` tells apart samples of an
    equal request; `template` is the digest of the prompt templates. Addresses and keys are not part of it.
    """
    payload = {"request": request, "sample": sample, "template": template}
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def question_key(request: Mapping[str, Any], sample: str, template: str) -> str:
    """The key of a request without its bounds: equal for requests whose whole answers are equal."""
    return request_key({name: value for name, value in request.items() if name not in BOUNDS}, sample, template)


class Ledger:
    """A mapping from request keys to raw completions, used by one process at a time and by one thread.

    Raises LedgerError when another process has the file open, or when the file holds a damaged record before its end
    (which a kill cannot cause).
    """

    def __init__(self, path: Path | str) -> None:
        self._file = AppendFile(path)
        try:
            self._table = AnswerTable(self._read, self._file.path.parent)
        except BaseException:
            self._file.close()
            raise
        try:
            for place, record in self._file.records():
                answer = answer_of(record, self._file.path)
                self._table.add(place, answer.key, answer.question)
        except BaseException:
            self.close()
            raise
        self.path, self.torn_bytes = self._file.path, self._file.torn_bytes

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._table)

    def __contains__(self, key: str) -> bool:
        return self._table.answer(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Keys in the order in which they were finished, read from the file."""
        return (answer.key for answer in self.answers())

    def answers(self) -> Iterator[Answer]:
        """All answers in the order in which they were finished. Raises LedgerError as `get`."""
        return iter(self._table)

    def get(self, key: str) -> str | None:
        """The raw completion for `key`, None if never finished. Raises LedgerError when it no longer verifies."""
        answer = self._table.answer(key)
        return None if answer is None else answer.raw

    def fitting(self, question: str, bound: int) -> Answer | None:
        """An answer to the same question that was given under another bound and holds under this one."""
        return next((answer for answer in self._table.answers_to(question) if answer.fits(bound)), None)

    def put(self, key: str, raw: str, question: str = "", bound: int | None = None) -> str:
        """Store a raw completion and return what the ledger holds: the first one put under a key stays."""
        known = self.get(key)
        if known is not None:
            return known
        record = [key, raw] if bound is None else [key, raw, question, bound]
        self._table.add(self._file.append(record), key, question)
        return raw

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        self._table.close()
        self._file.close()

    def _read(self, place: Place) -> Answer:
        return answer_of(self._file.read(place), self._file.path)
