"""Answers that other attempts and other runs have paid for, to be read where the stage's own ledger has none.

A request's key holds all that decides its answer, so that an answer is as good from there as from the endpoint. Files
are ledgers as they lie on disk or in the store; whoever owns one may be writing to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from nanocode.constitution.append_file import LedgerError, Place, read_record, whole_records
from nanocode.constitution.ledger import Answer, Index, answer_of


@dataclass(frozen=True)
class Source:
    """A ledger file. `counted`: what its answers cost stands in the provenance of a record already."""

    path: Path
    counted: bool


class EarlierAnswers:
    """Answers by request and question, over several files; of equal ones that of the first file counts."""

    def __init__(self, sources: Iterable[Source] = ()) -> None:
        """Reads every file once; what stands behind a damaged record is not used, nor a file that its owner removed."""
        self._stack = ExitStack()
        self._files: list[tuple[Source, int, Index]] = []
        for source in sources:
            try:
                descriptor = os.open(source.path, os.O_RDONLY | os.O_CLOEXEC)
                self._stack.callback(os.close, descriptor)
                self._files.append((source, descriptor, _indexed(source.path)))
            except FileNotFoundError:
                continue

    def __enter__(self) -> EarlierAnswers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return sum(len(index) for _, _, index in self._files)

    def find(self, key: str, question: str, bound: int) -> tuple[Answer, bool] | None:
        """The answer to that very request, else one to its question that holds under its bound; and `counted`."""
        for source, descriptor, index in self._files:
            place = index.place(key)
            if place is not None:
                return _read(descriptor, place, source), source.counted
        for source, descriptor, index in self._files:
            for place in index.places(question):
                answer = _read(descriptor, place, source)
                if answer.fits(bound):
                    return answer, source.counted
        return None


def _indexed(path: Path) -> Index:
    index = Index()
    try:
        for place, record in whole_records(path):
            answer = answer_of(record)
            index.add(place, answer.key, answer.question)
    except LedgerError:
        return index
    return index


def _read(descriptor: int, place: Place, source: Source) -> Answer:
    return answer_of(read_record(descriptor, place, source.path))
