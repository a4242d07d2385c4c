"""What stores in buckets have in common, whoever serves the bucket.

Every write of which there may be a race carries a mark of its own. When the answer to it was lost and the repetition is
refused, or when the object exists, the store looks whose mark the object bears: that one won. Uploads carry checksums,
so that the server refuses a torn one; downloads are counted and pinned to one version of the object. Large objects move
in parts (`artifacts.transfer`).
"""

from __future__ import annotations

import functools
import hashlib
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, ClassVar, TypeVar

from artifacts.retry import Patience
from artifacts.store import CHUNK_BYTES, MARKER, Marker, MissingObject, StoreError, check_name
from artifacts.transfer import Transfers, appearing

WRITER = "nanocode-write"  # the key of a writer's mark in an object's metadata
ABSENT = ""  # the tag of an object that does not exist
PRECONDITION_FAILED = 412

_Result = TypeVar("_Result")


class Refused(StoreError):
    """The condition of a request did not hold."""


@dataclass(frozen=True)
class Look:
    """What a server says of an object: bytes, version tag, Unix seconds of the write, and the writer's mark."""

    size: int
    tag: str
    modified: float
    mark: str | None


class BucketStore(ABC):
    """Objects under `prefix` in `bucket`. Subclasses speak the server's language; their methods raise StoreError."""

    scheme: ClassVar[str]
    errors: ClassVar[tuple[type[Exception], ...]]  # what the server's client raises

    def __init__(
        self, bucket: str, prefix: str = "", *, patience: Patience | None = None, transfers: Transfers | None = None
    ) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix}/" if prefix else ""
        self.url = f"{self.scheme}://{bucket}/{prefix}".rstrip("/")
        self._patience = patience or Patience()
        self._transfers = transfers or Transfers()
        self._marker = Marker()

    def put_file(self, name: str, path: Path, sha256: str | None = None) -> None:
        key = self._key(name)
        self._marker.ensure(self)
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size > self._transfers.part_bytes:
                    self._put_large(key, file, size, sha256)
                    return
                data = file.read()
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
        check_sha256(path, hashlib.sha256(data).hexdigest(), sha256)
        self._put(key, data)

    def put_bytes(self, name: str, data: bytes) -> None:
        key = self._key(name)
        self._marker.ensure(self)
        self._put(key, data)

    def put_if_absent(self, name: str, data: bytes) -> bool:
        return self._put_if(self._key(name), data, ABSENT)

    def put_if_tag(self, name: str, data: bytes, tag: str) -> bool:
        return tag != ABSENT and self._put_if(self._key(name), data, tag)

    def read(self, name: str) -> bytes:
        return self.read_tagged(name)[0]

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        return self._whole(self._key(name))

    def stream(self, name: str) -> Iterator[bytes]:
        key = self._key(name)
        data, size, tag = self._first_part(key)
        offset = len(data)
        while True:
            yield from (data[start : start + CHUNK_BYTES] for start in range(0, len(data), CHUNK_BYTES))
            if offset >= size:
                return
            data = self._part(key, tag, size, offset)
            offset += len(data)

    def fetch(self, name: str, path: Path) -> None:
        key = self._key(name)
        for _ in range(self._patience.attempts):
            try:
                with appearing(path) as descriptor:
                    first, size, tag = self._first_part(key)
                    self._transfers.receive(descriptor, size, first, functools.partial(self._part, key, tag, size))
                return
            except Refused:
                continue  # the object was replaced between two parts
        raise StoreError(f"cannot read {name} in store {self.url}: it is replaced again and again; run again")

    def size(self, name: str) -> int | None:
        found = self._look(self._key(name))
        return None if found is None else found.size

    def modified(self, name: str) -> float | None:
        found = self._look(self._key(name))
        return None if found is None else found.modified

    def list(self, prefix: str) -> Iterator[str]:
        names = (key.removeprefix(self.prefix) for key in self._keys(self.prefix + prefix))
        # Servers that keep folders sort by folder, and list those that are empty.
        yield from sorted(name for name in names if name and name != MARKER and not name.endswith("/"))

    def delete(self, name: str) -> None:
        self._remove(self._key(name))

    def _key(self, name: str) -> str:
        return self.prefix + check_name(name)

    def _put_if(self, key: str, data: bytes, tag: str) -> bool:
        self._marker.ensure(self)
        mark = uuid.uuid4().hex
        try:
            self._put(key, data, mark, tag)
        except (Refused, MissingObject):
            return self._bears(key, mark)
        return True

    def _bears(self, key: str, mark: str) -> bool:
        """Whether an object is what the write with that mark made it."""
        found = self._look(key)
        return found is not None and found.mark == mark

    def _call(self, action: str, key: str, request: Callable[[], _Result]) -> _Result:
        """The answer to a request, tried as often as makes sense. Raises MissingObject, Refused, StoreError."""
        try:
            return self._patience.run(request, self._may_pass)
        except self.errors as error:
            if self._is_missing(error):
                raise MissingObject(f"no object {self._named(key)}") from error
            if self._status(error) == PRECONDITION_FAILED:
                raise Refused(f"cannot {action} {self._named(key)}: it was replaced meanwhile") from error
            why = self._reason(error)
            raise StoreError(f"cannot {action} {self._named(key)}: {why}", transient=self._may_pass(error)) from error

    def _named(self, key: str) -> str:
        return f"{key.removeprefix(self.prefix) or 'everything'} in store {self.url}"

    @abstractmethod
    def _may_pass(self, error: Exception) -> bool:
        """Whether another attempt may go better."""

    @abstractmethod
    def _is_missing(self, error: Exception) -> bool:
        """Whether the error says that there is no such object."""

    @abstractmethod
    def _status(self, error: Exception) -> int:
        """The HTTP status of the answer; 0 when there was none."""

    @abstractmethod
    def _reason(self, error: Exception) -> str:
        """The error in one line, with the cure."""

    @abstractmethod
    def _put(self, key: str, data: bytes, mark: str | None = None, tag: str | None = None) -> None:
        """Store bytes, only over the version with that tag if one is given. Raises Refused, or MissingObject."""

    @abstractmethod
    def _put_large(self, key: str, file: BinaryIO, size: int, sha256: str | None) -> None:
        """Store an open file, whole or not at all."""

    @abstractmethod
    def _whole(self, key: str) -> tuple[bytes, str]:
        """A small object and its tag. Raises MissingObject."""

    @abstractmethod
    def _first_part(self, key: str) -> tuple[bytes, int, str]:
        """The first `part_bytes` of an object, its whole size, and its tag. Raises MissingObject."""

    @abstractmethod
    def _part(self, key: str, tag: str, size: int, start: int) -> bytes:
        """The `part_bytes` from `start` on of the version with that tag. Raises Refused when it was replaced."""

    @abstractmethod
    def _look(self, key: str) -> Look | None:
        """What is known of an object; None when there is none."""

    @abstractmethod
    def _keys(self, prefix: str) -> Iterator[str]:
        """The keys that start with `prefix`, in any order."""

    @abstractmethod
    def _remove(self, key: str) -> None:
        """Remove an object; no error when there is none."""

    def _part_length(self, size: int, start: int = 0) -> int:
        return min(self._transfers.part_bytes, size - start)


def check_sha256(path: Path, found: str, expected: str | None) -> None:
    """Raises StoreError when a file's bytes are not what was announced."""
    if expected is not None and found != expected:
        raise StoreError(f"{path} changed while it was stored: expected sha256 {expected}, read {found}")
