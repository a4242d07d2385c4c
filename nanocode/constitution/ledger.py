"""The request ledger: every finished completion, on disk before anybody reads it, so that none is ever paid for
twice.

One append-only file; a record is one line: ``LENGTH CRC32 JSON`` with eight hex digits each for the byte length and
the checksum of the JSON, which holds the request's key and the raw response. A kill at any byte tears at most the
last line, and opening the ledger cuts a torn line off, so that the next record never glues to it. Writes reach the
kernel at once (they survive the process) and the disk every `SYNC_RECORDS` records and on close (a power cut costs at
most those).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

SYNC_RECORDS = 256
_HEADER_BYTES = 18


class LedgerError(RuntimeError):
    """A ledger that cannot be used. The message is one line: what, where, and the cure."""


def request_key(request: Mapping[str, Any], sample: str, template: str) -> str:
    """sha256 of the canonical JSON of everything that decides a completion.

    `request` is the whole body (model, sampling fields, messages, tools, schema); `sample` tells apart samples of an
    equal request; `template` is the digest of the prompt templates. Addresses and keys are not part of it.
    """
    payload = {"request": request, "sample": sample, "template": template}
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


@dataclass(frozen=True)
class _Place:
    offset: int
    length: int


class Ledger:
    """A mapping from request keys to raw completions, used by one process at a time and by one thread.

    Raises LedgerError when another process has the file open, or when the file holds a damaged record before its end
    (which a kill cannot cause).
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._unsynced = 0
        try:
            self._lock()
            self._places, self._end, self.torn_bytes = self._scan()
            os.ftruncate(self._descriptor, self._end)
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        """Keys in the order in which they were finished."""
        return iter(self._places)

    def get(self, key: str) -> str | None:
        """The raw completion for `key`, None if never finished. Raises LedgerError when it no longer verifies."""
        place = self._places.get(key)
        if place is None:
            return None
        line = os.pread(self._descriptor, place.length, place.offset)
        record = _decode(line)
        if record is None or record[0] != key:
            raise LedgerError(f"{self.path}: the record at byte {place.offset} changed on disk: delete the file")
        return record[1]

    def put(self, key: str, raw: str) -> str:
        """Store a raw completion and return what the ledger holds: the first one put under a key stays."""
        known = self.get(key)
        if known is not None:
            return known
        line = _encode(key, raw)
        written = os.pwrite(self._descriptor, line, self._end)
        if written != len(line):
            os.ftruncate(self._descriptor, self._end)
            raise LedgerError(f"{self.path}: the disk took {written} of {len(line)} bytes: free some space")
        self._places[key] = _Place(self._end, len(line))
        self._end += len(line)
        self._unsynced += 1
        if self._unsynced >= SYNC_RECORDS:
            self._sync()
        return raw

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        if self._descriptor >= 0:
            self._sync()
            os.close(self._descriptor)
            self._descriptor = -1

    def _sync(self) -> None:
        os.fsync(self._descriptor)
        self._unsynced = 0

    def _lock(self) -> None:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(f"{self.path} is in use by another process: wait for it or end it") from None

    def _scan(self) -> tuple[dict[str, _Place], int, int]:
        """Places of all records, the end of the last good one, and the bytes of a torn record after it."""
        data = self.path.read_bytes()
        places: dict[str, _Place] = {}
        position = 0
        while position < len(data):
            newline = data.find(b"\n", position)
            end = len(data) if newline < 0 else newline + 1
            record = _decode(data[position:end])
            if record is None:
                if newline >= 0:
                    raise LedgerError(
                        f"{self.path}: the record at byte {position} is damaged: delete or restore the file"
                    )
                break
            places[record[0]] = _Place(position, end - position)
            position = end
        return places, position, len(data) - position


def _encode(key: str, raw: str) -> bytes:
    body = json.dumps([key, raw]).encode("ascii")
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def _decode(line: bytes) -> tuple[str, str] | None:
    """Key and raw completion of one whole line, None unless length, checksum and line end are right."""
    body = line[_HEADER_BYTES:-1]
    if not line.endswith(b"\n") or line[:_HEADER_BYTES] != b"%08x %08x " % (len(body), zlib.crc32(body)):
        return None
    key, raw = json.loads(body)
    return key, raw
