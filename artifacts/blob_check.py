"""Re-reading and re-hashing blobs, several at a time: a large file does not wait for the small ones, nor they for it.

Memory is bounded by one piece a thread. Hashing lets go of the interpreter, so threads use the cores there are.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from artifacts.reach import Fault
from artifacts.records import FileEntry
from artifacts.repository import TRANSFERS, blob_name
from artifacts.store import MissingObject, ObjectStore

Progress = Callable[[int, int], None]


def blob_faults(store: ObjectStore, files: Mapping[FileEntry, str], progress: Progress) -> list[Fault]:
    """Every blob that is not what its file entry promises, in the order of `files` (entry -> who names it).

    `progress` hears (bytes read, bytes in all), from one thread at a time. Raises StoreError when the store fails.
    """
    owners = {entry.sha256: owner for entry, owner in files.items()}
    count = _Count(sum(entry.bytes for entry in files), progress)

    def check(entry: FileEntry) -> list[Fault]:
        return _check(store, entry, files[entry], owners, count)

    # Large files first, so that the last thread does not end up alone with one.
    largest_first = sorted(files, key=lambda entry: -entry.bytes)
    with ThreadPoolExecutor(min(TRANSFERS, (os.cpu_count() or 1) + 1)) as pool:
        try:
            found = dict(zip(largest_first, pool.map(check, largest_first), strict=True))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return [fault for entry in files for fault in found[entry]]


class _Count:
    """Bytes read by all threads together."""

    def __init__(self, total: int, progress: Progress) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._lock = Lock()

    def add(self, size: int) -> None:
        with self._lock:
            self._done = min(self._done + size, self._total)
            self._progress(self._done, self._total)


def _check(store: ObjectStore, entry: FileEntry, owner: str, owners: Mapping[str, str], count: _Count) -> list[Fault]:
    name = blob_name(entry.sha256)
    hasher = hashlib.sha256()
    size = 0
    try:
        for piece in store.stream(name):
            hasher.update(piece)
            size += len(piece)
            count.add(len(piece))
    except MissingObject:
        return [Fault("missing-blob", name, f"{owner}: its blob is missing")]
    return _compare(entry, owner, size, hasher.hexdigest(), owners)


def _compare(entry: FileEntry, owner: str, size: int, sha256: str, owners: Mapping[str, str]) -> list[Fault]:
    name = blob_name(entry.sha256)
    if sha256 == entry.sha256 and size == entry.bytes:
        return []
    instead = f", which is {owners[sha256]}" if sha256 in owners else ""
    if size < entry.bytes and not instead:
        return [Fault("truncated-blob", name, f"{owner}: {size} bytes of {entry.bytes} are left")]
    kind = "swapped-blob" if instead else "altered-blob"
    message = f"{owner}: expected sha256 {entry.sha256}, {entry.bytes} bytes; found {sha256}{instead}, {size} bytes"
    return [Fault(kind, name, message)]
