"""Copies of a remote store's blobs on this machine's disk, so that none is downloaded twice.

Only what is named by its own hash is kept: such a copy can be checked by itself and never gets out of date.
Processes share the folder without locks: a copy appears by a rename, is checked whenever it is used, and one that is
deleted while another process reads it stays readable for that process.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from artifacts.records import Warn, silent
from artifacts.store import CHUNK_BYTES, ObjectStore, StoreError
from artifacts.transfer import appearing, write_at

_BLOB = re.compile(r"objects/sha256/[0-9a-f]{2}/([0-9a-f]{64})")
_SHARE_BETWEEN_LOOKS = 16  # of the limit: what may be added before all sizes are looked at again


class CachedStore:
    """`store`, with copies of blobs that were fetched in `folder`: those used last, of `max_bytes` at most together.

    Everything but `fetch` goes to the store itself: what is there and whether it is whole is never answered from here.
    """

    def __init__(self, store: ObjectStore, folder: Path, max_bytes: int, warn: Warn = silent) -> None:
        self.url = store.url
        self.folder = folder
        self.max_bytes = max_bytes
        self._store, self._warn = store, warn
        self._added: int | None = None  # bytes since all sizes were looked at; None before the first look

    def put_file(self, name: str, path: Path, sha256: str | None = None) -> None:
        self._store.put_file(name, path, sha256)

    def put_bytes(self, name: str, data: bytes) -> None:
        self._store.put_bytes(name, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._store.put_if_absent(name, data)

    def put_if_tag(self, name: str, data: bytes, tag: str) -> bool:
        return self._store.put_if_tag(name, data, tag)

    def read(self, name: str) -> bytes:
        return self._store.read(name)

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        return self._store.read_tagged(name)

    def stream(self, name: str) -> Iterator[bytes]:
        return self._store.stream(name)

    def size(self, name: str) -> int | None:
        return self._store.size(name)

    def modified(self, name: str) -> float | None:
        return self._store.modified(name)

    def list(self, prefix: str) -> Iterator[str]:
        return self._store.list(prefix)

    def delete(self, name: str) -> None:
        self._store.delete(name)

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a local file, from the cache if it is there and whole."""
        blob = _BLOB.fullmatch(name)
        if blob is None or not self._use(blob[1], path):
            self._store.fetch(name, path)
            if blob is not None:
                self._keep(blob[1], path)

    def _kept(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256

    def _use(self, sha256: str, path: Path) -> bool:
        """Copy what is kept to `path`; False when nothing is, or when it is not what its name says."""
        kept = self._kept(sha256)
        if not kept.is_file():
            return False
        with contextlib.suppress(OSError):
            if _copy(kept, path) == sha256:
                os.utime(kept)
                return True
        with contextlib.suppress(OSError):
            kept.unlink(missing_ok=True)
        return False

    def _keep(self, sha256: str, path: Path) -> None:
        """Keep a copy of what was fetched. A cache that cannot be written costs time and nothing else."""
        kept = self._kept(sha256)
        try:
            size = path.stat().st_size
            if size > self.max_bytes:
                return
            kept.parent.mkdir(parents=True, exist_ok=True)
            if _copy(path, kept) != sha256:
                kept.unlink(missing_ok=True)  # altered in the store: for the caller to find
                return
            self._make_room(size)
        except (OSError, StoreError) as error:
            self._warn(f"nothing is kept in {self.folder}: {getattr(error, 'strerror', None) or error}")

    def _make_room(self, added: int) -> None:
        """Delete what was not used for longest, once enough was added since all sizes were looked at."""
        if self._added is not None and self._added + added < self.max_bytes // _SHARE_BETWEEN_LOOKS:
            self._added += added
            return
        found = sorted(_files(self.folder))
        total = sum(size for _, size, _ in found)
        for _, size, path in found:
            if total <= self.max_bytes:
                break
            path.unlink(missing_ok=True)
            total -= size
        self._added = 0


def _copy(source: Path, target: Path) -> str:
    """Copy a file so that `target` appears whole; returns the sha256 of what was copied."""
    hasher, offset = hashlib.sha256(), 0
    with source.open("rb") as file, appearing(target) as descriptor:
        while piece := file.read(CHUNK_BYTES):
            hasher.update(piece)
            write_at(descriptor, piece, offset)
            offset += len(piece)
    return hasher.hexdigest()


def _files(folder: Path) -> Iterator[tuple[float, int, Path]]:
    """When each kept file was used last, its bytes and its path. Others may delete them meanwhile."""
    for path in folder.glob("*/*"):
        with contextlib.suppress(FileNotFoundError):
            status = path.stat()
            yield status.st_mtime, status.st_size, path
