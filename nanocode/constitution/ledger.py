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
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nanocode.constitution.append_file import AppendFile, LedgerError, Place

__all__ = ["Answer", "Index", "Ledger", "LedgerError", "answer_of", "question_key", "request_key"]

BOUNDS = frozenset({"max_tokens"})
_SHORT_BYTES, _LENGTH_BITS = 16, 32


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
        length = (body.get("usage") or {}).get("completion_tokens") or None
        return length is not None and int(length) <= bound


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


def answer_of(record: list[Any]) -> Answer:
    """A record of a ledger file, with or without question and bound."""
    return Answer(*record)


class Index:
    """Where answers lie, by request and by question. Keys are kept as short digests: there may be millions."""

    def __init__(self) -> None:
        self._requests: dict[bytes, int] = {}
        self._questions: dict[bytes, int | tuple[int, ...]] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Place]:
        """All places, in the order in which they were added."""
        return map(_unpacked, self._requests.values())

    def add(self, place: Place, key: str, question: str) -> None:
        """A record; the first one under a key stays."""
        packed, short = place.offset << _LENGTH_BITS | place.length, _short(key)
        if short in self._requests:
            return
        self._requests[short] = packed
        if question:
            known = self._questions.get(_short(question), ())
            others = known if isinstance(known, tuple) else (known,)
            self._questions[_short(question)] = (*others, packed) if others else packed

    def place(self, key: str) -> Place | None:
        """Where the answer to a request lies."""
        packed = self._requests.get(_short(key))
        return None if packed is None else _unpacked(packed)

    def places(self, question: str) -> Iterator[Place]:
        """Where the answers to a question lie, under whatever bounds."""
        known = self._questions.get(_short(question), ())
        return map(_unpacked, known if isinstance(known, tuple) else (known,))


def _short(key: str) -> bytes:
    return hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=_SHORT_BYTES).digest()


def _unpacked(packed: int) -> Place:
    return Place(packed >> _LENGTH_BITS, packed & ((1 << _LENGTH_BITS) - 1))


class Ledger:
    """A mapping from request keys to raw completions, used by one process at a time and by one thread.

    Raises LedgerError when another process has the file open, or when the file holds a damaged record before its end
    (which a kill cannot cause).
    """

    def __init__(self, path: Path | str) -> None:
        self._file, self._index = AppendFile(path), Index()
        try:
            for place, record in self._file.records():
                answer = answer_of(record)
                self._index.add(place, answer.key, answer.question)
        except BaseException:
            self._file.close()
            raise
        self.path, self.torn_bytes = self._file.path, self._file.torn_bytes

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, key: str) -> bool:
        return self._index.place(key) is not None

    def __iter__(self) -> Iterator[str]:
        """Keys in the order in which they were finished, read from the file."""
        return (answer.key for answer in self.answers())

    def answers(self) -> Iterator[Answer]:
        """All answers in the order in which they were finished. Raises LedgerError as `get`."""
        return map(self._read, self._index)

    def get(self, key: str) -> str | None:
        """The raw completion for `key`, None if never finished. Raises LedgerError when it no longer verifies."""
        place = self._index.place(key)
        if place is None:
            return None
        answer = self._read(place)
        assert answer.key == key, f"{self.path}: byte {place.offset} holds {answer.key}, not {key}"
        return answer.raw

    def fitting(self, question: str, bound: int) -> Answer | None:
        """An answer to the same question that was given under another bound and holds under this one."""
        answers = map(self._read, self._index.places(question))
        return next((answer for answer in answers if answer.fits(bound)), None)

    def put(self, key: str, raw: str, question: str = "", bound: int | None = None) -> str:
        """Store a raw completion and return what the ledger holds: the first one put under a key stays."""
        known = self.get(key)
        if known is not None:
            return known
        record = [key, raw] if bound is None else [key, raw, question, bound]
        self._index.add(self._file.append(record), key, question)
        return raw

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        self._file.close()

    def _read(self, place: Place) -> Answer:
        return answer_of(self._file.read(place))
