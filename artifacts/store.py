"""Object stores: flat names to bytes, with two atomic operations: create if absent, and replace if unchanged.

`ObjectStore` is the whole contract that the artifact layer needs; `FileStore` keeps it in a folder, `S3Store` and
`GcsStore` in a bucket. `open_store` chooses by URL.

A store says in `store.json` which layout its objects have, from the first write on. One without it has the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from artifacts.records import Warn, silent

CHUNK_BYTES = 1 << 20
CACHE_BYTES = 20_000_000_000
MARKER = "store.json"
SCHEMA = 1

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{2,221}")
_PART = re.compile(r"[A-Za-z0-9_@=+,-][A-Za-z0-9_@=+,.-]*")


class StoreError(ValueError):
    """The store cannot do what was asked. The message is one line: what, where, and the cure.

    `transient`: asking again later may go better, as when a server is away.
    """

    def __init__(self, message: str, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


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
        """The names that start with `prefix`, sorted. The mark of the store's layout is not among them."""

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


@dataclass(frozen=True)
class StoreSettings:
    """How stores are used. `cache` is the folder for copies of remote blobs, of `cache_bytes` at most (0: none).

    `unsafe_leases` lets a server without conditional writes be used.
    """

    cache: Path | None = None
    cache_bytes: int = 0
    unsafe_leases: bool = False

    @classmethod
    def chosen(
        cls, environment: Mapping[str, str], root: Path, *, cache_bytes: int = CACHE_BYTES, unsafe_leases: bool = False
    ) -> StoreSettings:
        """These settings, with what NANOCODE_CACHE and NANOCODE_UNSAFE_LEASES=1 say; paths count from `root`."""
        cache = root / Path(environment.get("NANOCODE_CACHE") or ".nanocode/cache").expanduser()
        return cls(cache, cache_bytes, unsafe_leases or environment.get("NANOCODE_UNSAFE_LEASES") == "1")


def open_store(
    url: str, root: Path | None = None, settings: StoreSettings = StoreSettings(), warn: Warn = silent
) -> ObjectStore:
    """The store at `url`: `file:PATH`, `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`, looked at once.

    A relative `file:` path counts from `root` (default: the working directory). Raises WrongStore for a URL that is
    none and for a store of a newer layout, StoreError when the store does not answer.
    """
    scheme, _, rest = url.partition(":")
    if scheme == "file":
        store = _open_folder(url, rest, root or Path.cwd())
    elif scheme in ("s3", "gs"):
        store = _open_bucket(url, scheme, settings, warn)
    else:
        raise WrongStore(f"store {url!r}: use one of the supported kinds: file:PATH, s3://BUCKET/PREFIX, gs://...")
    check_schema(store)
    return store


def check_schema(store: ObjectStore) -> bool:
    """Whether the store bears a mark of its layout. Raises WrongStore when the layout is not known here."""
    try:
        data = store.read(MARKER)
    except MissingObject:
        return False
    try:
        schema = json.loads(data)["schema"]
    except (ValueError, KeyError, TypeError):
        raise WrongStore(f"{MARKER} in store {store.url} is malformed: restore it, or choose another store") from None
    if schema != SCHEMA:
        raise WrongStore(
            f"store {store.url} has schema {schema}, this nanocode knows {SCHEMA}: use the nanocode that wrote it, "
            "or choose another store"
        )
    return True


class Marker:
    """Writes `store.json` before a store's first object."""

    def __init__(self) -> None:
        self._seen = False

    def ensure(self, store: ObjectStore) -> None:
        """Write the mark unless this process saw it already."""
        if self._seen:
            return
        self._seen = True  # now, because the mark itself is written through the store
        try:
            if not check_schema(store):
                store.put_if_absent(MARKER, json.dumps({"schema": SCHEMA}).encode())
        except BaseException:
            self._seen = False
            raise


def _open_folder(url: str, rest: str, root: Path) -> ObjectStore:
    from artifacts.file_store import FileStore

    if rest.startswith("//"):
        if not rest.startswith("///"):
            raise WrongStore(f"store {url!r} names a host: write file:PATH or file:///PATH")
        rest = rest[2:]
    if not rest:
        raise WrongStore(f"store {url!r} has no path: write file:PATH")
    return FileStore(root / Path(rest).expanduser())


def _open_bucket(url: str, scheme: str, settings: StoreSettings, warn: Warn) -> ObjectStore:
    bucket, _, prefix = url.removeprefix(f"{scheme}://").rstrip("/").partition("/")
    if not url.startswith(f"{scheme}://") or not bucket:
        raise WrongStore(f"store {url!r} names no bucket: write {scheme}://BUCKET/PREFIX")
    if not _BUCKET.fullmatch(bucket):
        raise WrongStore(f"store {url!r}: bucket names have at least 3 letters, digits, dots and hyphens")
    if prefix:
        check_name(prefix)
    store: ObjectStore
    if scheme == "s3":
        from artifacts.s3_store import S3Store

        store = S3Store(bucket, prefix, unsafe=settings.unsafe_leases, warn=warn)
    else:
        try:
            from artifacts.gcs_store import GcsStore
        except ModuleNotFoundError as error:
            raise WrongStore(f"store {url!r} needs {error.name}: pip install 'nanocode[gcs]'") from None
        store = GcsStore(bucket, prefix)
    if settings.cache is None or not settings.cache_bytes:
        return store
    from artifacts.cached_store import CachedStore

    return CachedStore(store, settings.cache, settings.cache_bytes, warn)
