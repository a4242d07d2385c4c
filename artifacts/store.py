"""Object stores: flat names to bytes, with two atomic operations: create if absent, and replace if unchanged.

`ObjectStore` is the whole contract that the artifact layer needs; `FileStore` keeps it in a folder. `open_store`
chooses by URL.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20

_PART = re.compile(r"[A-Za-z0-9_@=+,-][A-Za-z0-9_@=+,.-]*")


class StoreError(ValueError):
    """The store cannot do what was asked. The message is one line: what, where, and the cure."""


class MissingObject(StoreError):
    """There is no object of that name."""


class WrongStore(StoreError):
    """A store URL that cannot be used."""


class ObjectStore(Protocol):
    """Flat names (`a/b/c`, no folders of their own) to bytes. An object is visible whole or not at all.

    Every method raises StoreError when the store fails; `read`, `read_tagged`, `stream` and `fetch` raise MissingObject
    for an unknown name.
    """

    url: str

    def put_file(self, name: str, path: Path, sha256: str | None = None) -> None:
        """Store a local file, replacing what is there. With `sha256`, refuse bytes that hash to anything else."""

    def put_bytes(self, name: str, data: bytes) -> None:
        """Store bytes, replacing what is there."""

    def put_if_absent(self, name: str, data: bytes) -> bool:
        """Create an object; False when one of that name exists. Of any number of racers exactly one gets True."""

    def put_if_tag(self, name: str, data: bytes, tag: str) -> bool:
        """Replace an object that still carries `tag`; False when it changed or is gone.

        Of any number of racers with one tag exactly one gets True. Equal bytes may carry equal tags, as they do on S3:
        a writer that must tell its write from another's puts something of its own into the bytes.
        """

    def read(self, name: str) -> bytes:
        """A small object, whole."""

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        """A small object, whole, and the tag that stands for what was read."""

    def stream(self, name: str) -> Iterator[bytes]:
        """An object of any size, in pieces of at most `CHUNK_BYTES`."""

    def fetch(self, name: str, path: Path) -> None:
        """Copy an object to a local file that the caller owns and may change."""

    def size(self, name: str) -> int | None:
        """Bytes of an object; None when there is none."""

    def modified(self, name: str) -> float | None:
        """When an object was written, in Unix seconds by the store's own clock; None when there is none."""

    def list(self, prefix: str) -> Iterator[str]:
        """The names that start with `prefix`, sorted."""

    def delete(self, name: str) -> None:
        """Remove an object; no error when there is none."""


def check_name(name: str) -> str:
    """The name itself.

    Raises StoreError when it is not made of safe parts (letters, digits, `_@=+,-.`) joined by `/`.
    """
    if not all(_PART.fullmatch(part) for part in name.split("/")):
        raise StoreError(
            f"object name {name!r}: parts between '/' may hold letters, digits and _@=+,-. and not start with '.'"
        )
    return name


def open_store(url: str, root: Path | None = None) -> ObjectStore:
    """The store at `url`.

    A relative `file:` path counts from `root` (default: the working directory). Raises WrongStore.
    """
    scheme, separator, rest = url.partition(":")
    if not separator or scheme != "file":
        raise WrongStore(f"store {url!r}: use one of the supported kinds: file:PATH")
    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise WrongStore(f"store {url!r} names a host: write file:PATH or file:///PATH")
        rest = rest[2:]
    if not rest:
        raise WrongStore(f"store {url!r} has no path: write file:PATH")
    from artifacts.file_store import FileStore

    return FileStore((root or Path.cwd()) / Path(rest).expanduser())
