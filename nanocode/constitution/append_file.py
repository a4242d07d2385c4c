"""A file that only grows, one JSON value a line, and that a kill at any byte leaves readable.

A line is ``LENGTH CRC32 JSON``, eight hex digits each for the byte length and the checksum of the JSON. A kill tears at
most the last line; opening the file cuts a torn line off, so that the next record never glues to it. Writes reach the
kernel at once (they survive the process) and the disk every `SYNC_RECORDS` records and on close (a power cut costs at
most those).
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nanocode.growing_file import DiskFullError, FileInUseError, GrowingFile

SYNC_RECORDS = 256
_HEADER_BYTES = 18


class LedgerError(RuntimeError):
    """A ledger that cannot be used. The message is one line: what, where, and the cure."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a record's line lies, in bytes."""

    offset: int
    length: int


class AppendFile:
    """Used by one process at a time and by one thread.

    Raises LedgerError when another process has the file open, or when the file holds a damaged record before its end
    (which a kill cannot cause).
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        try:
            self._file = GrowingFile(self.path)
        except FileInUseError as error:
            raise LedgerError(f"{error}: wait for it or end it") from None
        self._unsynced = self.torn_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def records(self) -> Iterator[tuple[Place, Any]]:
        """All records in the order of writing, to be read once, to the end, before the first `append`."""
        end = 0
        for place, value in whole_records(self.path):
            yield place, value
            end = place.offset + place.length
        self.torn_bytes = self._file.size - end
        self._file.cut(end)

    def read(self, place: Place) -> Any:
        """The record at `place`. Raises LedgerError when it no longer verifies."""
        return _verified(self._file.read(place.offset, place.length), place, self.path)

    def append(self, value: Any) -> Place:
        """Write a record. Raises LedgerError when the disk is full."""
        line = _encode(value)
        try:
            place = Place(self._file.append(line), len(line))
        except DiskFullError as error:
            raise LedgerError(str(error)) from None
        self._unsynced += 1
        if self._unsynced >= SYNC_RECORDS:
            self._file.sync()
            self._unsynced = 0
        return place

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        if not self._file.closed:
            with self._file:
                self._file.sync()


def whole_records(path: Path) -> Iterator[tuple[Place, Any]]:
    """The records of a file that another process may be appending to, up to a torn last line.

    Raises LedgerError at a damaged record before the end.
    """
    offset = 0
    with path.open("rb") as lines:
        for line in lines:
            found = _decode(line)
            if found is None:
                if line.endswith(b"\n"):
                    raise LedgerError(f"{path}: the record at byte {offset} is damaged: delete or restore the file")
                return
            yield Place(offset, len(line)), found[0]
            offset += len(line)


def read_record(descriptor: int, place: Place, path: Path) -> Any:
    """The record at `place` of an open file. Raises LedgerError when it no longer verifies."""
    return _verified(os.pread(descriptor, place.length, place.offset), place, path)


def _verified(line: bytes, place: Place, path: Path) -> Any:
    found = _decode(line)
    if found is None:
        raise LedgerError(f"{path}: the record at byte {place.offset} changed on disk: delete the file")
    return found[0]


def _encode(value: Any) -> bytes:
    body = json.dumps(value).encode("ascii")
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def _decode(line: bytes) -> tuple[Any] | None:
    """The value of one whole line, None unless length, checksum and line end are right."""
    body = line[_HEADER_BYTES:-1]
    if not line.endswith(b"\n") or line[:_HEADER_BYTES] != b"%08x %08x " % (len(body), zlib.crc32(body)):
        return None
    return (json.loads(body),)
