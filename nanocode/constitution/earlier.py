"""Answers that other attempts and other runs have paid for, to be read where the stage's own ledger has none.

A request's key holds all that decides its answer, so that an answer is as good from there as from the endpoint. Files
are ledgers as they lie on disk or in the store; whoever owns one may be writing to it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from nanocode.constitution.answer_table import Answer, AnswerTable, answer_of
from nanocode.constitution.append_file import LedgerError, Place, read_record, whole_records


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
        self._files: list[tuple[Source, AnswerTable]] = []
        for source in sources:
            try:
                self._files.append((source, self._stack.enter_context(open_answers(source.path))))
            except FileNotFoundError:
                continue

    def __enter__(self) -> EarlierAnswers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __len__(self) -> int:
        return sum(len(table) for _, table in self._files)

    def find(self, key: str, question: str, bound: int) -> tuple[Answer, bool] | None:
        """The answer to that very request, else one to its question that holds under its bound; and `counted`."""
        for source, table in self._files:
            answer = table.answer(key)
            if answer is not None:
                return answer, source.counted
        for source, table in self._files:
            for answer in table.answers_to(question):
                if answer.fits(bound):
                    return answer, source.counted
        return None


@contextmanager
def open_answers(path: Path) -> Iterator[AnswerTable]:
    """The answers of a ledger file that another process may be appending to, up to a damaged record.

    It stays readable when its owner removes it. Raises FileNotFoundError when he has done so already.
    """
    with ExitStack() as stack:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        table = AnswerTable(lambda place: answer_of(read_record(descriptor, place, path), path), path.parent)
        stack.callback(table.close)
        for place, answer in _up_to_damage(path):
            table.add(place, answer.key, answer.question)
        yield table


def _up_to_damage(path: Path) -> Iterator[tuple[Place, Answer]]:
    with suppress(LedgerError):
        for place, record in whole_records(path):
            yield place, answer_of(record, path)
