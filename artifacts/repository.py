"""Artifacts in an object store: blobs by content, records by digest, keys that say which record answers which question.

    objects/sha256/ab/abcdef...          blobs
    records/<record digest>.json         how an artifact was made
    keys/<cache key>.json                {"record": digest, "payload": what was hashed}: written last, it is the commit
    provenance/<record digest>/<n>.json  one object for every making

Blobs come first and the key last, so an artifact is visible whole or not at all. Every read is verified against the
digest that named it.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from artifacts.canonical import canonical_json, digest
from artifacts.records import ArtifactError, FileEntry, Provenance, Record, Warn, check_fields, silent
from artifacts.store import CHUNK_BYTES, MissingObject, ObjectStore

TRANSFERS = 8
READERS = 16  # of small objects at once, where there are many
# An object that was there before may be swept by a collection that has not seen who needs it now. One that was written
# lately never is (artifacts.collect), so an older one is written again.
RESEND_AFTER_SECONDS = 3600.0

KEY_FIELDS: Mapping[str, type] = {"record": str, "payload": dict}

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Key:
    """A committed cache key: the record that answers it, and the payload whose digest is the key."""

    key: str
    record: str
    payload: Mapping[str, Any]


def blob_name(sha256: str) -> str:
    """Where the store keeps the blob of that hash."""
    return f"objects/sha256/{sha256[:2]}/{sha256}"


def record_name(record_digest: str) -> str:
    """Where the store keeps the record of that digest."""
    return f"records/{record_digest}.json"


def key_name(key: str) -> str:
    """Where the store keeps a cache key."""
    return f"keys/{key}.json"


def stem(name: str) -> str:
    """The digest, key or number in `keys/<key>.json`, `records/<digest>.json` and their like."""
    return name.rpartition("/")[2].removesuffix(".json")


class Repository:
    """Records and their files in `store`. `warn` hears, in one line each, what was wrong but could be worked around.

    `clock` gives Unix seconds.
    """

    def __init__(self, store: ObjectStore, warn: Warn = silent, clock: Callable[[], float] = time.time) -> None:
        self.store = store
        self.warn = warn
        self.clock = clock

    def put_folder(self, folder: Path) -> list[FileEntry]:
        """Store every file of a folder; returns the entries sorted by path. Blobs written lately are not sent again.

        Raises ArtifactError for links and special files, StoreError when the store fails or a file changes meanwhile.
        """

        return put_files(
            self.store, folder, blob_name, lambda name, size: self.store.size(name) == size and self._is_young(name)
        )

    def read_record(self, record_digest: str) -> Record:
        """The record of that digest, verified.

        Raises ArtifactError when it is missing or not what its name promises.
        """
        name = record_name(record_digest)
        try:
            data = self.store.read(name)
        except MissingObject:
            raise ArtifactError(f"record {record_digest} does not exist in store {self.store.url}") from None
        found = hashlib.sha256(data).hexdigest()
        if found != record_digest:
            raise ArtifactError(f"{name} was altered: its bytes hash to {found}; restore it or delete it and its key")
        return Record.from_json(data, name)

    def read_key(self, key: str) -> Key | None:
        """What a cache key points to; None when it was never committed. Raises ArtifactError when it was altered."""
        name = key_name(key)
        try:
            fields = check_fields(self.store.read(name), name, KEY_FIELDS)
        except MissingObject:
            return None
        if digest(fields["payload"]) != key:
            raise ArtifactError(f"{name} was altered: its payload hashes to {digest(fields['payload'])}; delete it")
        return Key(key, fields["record"], fields["payload"])

    def find(self, key: str) -> Record | None:
        """The record that answers a cache key, or None. A record whose blobs are not all there is a miss, and says so.

        Sizes are compared, nothing is re-hashed: a hit costs one look per file. Raises ArtifactError when the record is
        missing or altered: evidence of tampering must not be rebuilt over.
        """
        found = self.read_key(key)
        if found is None:
            return None
        record = self.read_record(found.record)
        if (record.step, record.config) != (found.payload.get("step"), found.payload.get("config")):
            raise ArtifactError(
                f"{key_name(key)} points elsewhere, to record {found.record[:12]} of {record.step}; delete it"
            )
        missing = missing_files(self.store, record.files, blob_name)
        if missing:
            self.warn(f"{record.step}: record {found.record[:12]} is no hit, its blobs are not whole: {missing[0]}")
            return None
        return record

    def use(self, key: str) -> Record | None:
        """`find` for somebody who goes on from the answer: collections keep it for as long as if it were made now."""
        record = self.find(key)
        if record is None or self._is_young(key_name(key)):
            return record
        try:
            data, tag = self.store.read_tagged(key_name(key))
        except MissingObject:
            return None
        # Only as it was: a key that was swept meanwhile must not come back without its record.
        return record if self.store.put_if_tag(key_name(key), data, tag) else self.find(key)

    def commit(
        self,
        key: str,
        payload: Mapping[str, Any],
        record: Record,
        provenance: Provenance,
        folder: Path | None = None,
    ) -> str:
        """Make a record visible under its key; returns the digest of the record that the key names from now on.

        That is another's when somebody committed the same key first: theirs counts, so that all who ask get one
        answer. A key whose record lost blobs is pointed to the new record. The blobs of `record` must be in the
        store; with `folder`, which holds its files, what a collection swept meanwhile is sent again.
        """
        self._require_blobs(record, folder)
        record_digest = record.digest
        if not self.store.put_if_absent(record_name(record_digest), record.to_json()):
            self.read_record(record_digest)
            if not self._is_young(record_name(record_digest)):
                self.store.put_bytes(record_name(record_digest), record.to_json())
        self.add_provenance(provenance)
        data = canonical_json({"record": record_digest, "payload": payload})
        is_first = self.store.put_if_absent(key_name(key), data)
        if folder is not None:
            self._require_blobs(record, folder)
            self.store.put_if_absent(record_name(record_digest), record.to_json())
        if is_first:
            return record_digest
        winner = self.find(key)
        if winner is not None:
            return winner.digest
        self.store.put_bytes(key_name(key), data)
        return record_digest

    def _is_young(self, name: str) -> bool:
        """Whether an object is too young for any collection to sweep it."""
        written = self.store.modified(name)
        return written is not None and written > self.clock() - RESEND_AFTER_SECONDS

    def _require_blobs(self, record: Record, folder: Path | None) -> None:
        missing = missing_files(self.store, record.files, blob_name)
        if missing and folder is not None:
            self.put_folder(folder)
            missing = missing_files(self.store, record.files, blob_name)
        if missing:
            raise ArtifactError(f"{record.step}: cannot be committed, {missing[0]}")

    def add_provenance(self, provenance: Provenance) -> None:
        """Append one making to a record's provenance."""
        append(self.store, f"provenance/{provenance.record}/", provenance.to_json())

    def provenances(self, record_digest: str) -> list[Provenance]:
        """Every making of a record, oldest first. Raises ArtifactError for a malformed one."""
        names = numbered(self.store, f"provenance/{record_digest}/").values()
        return [Provenance.from_json(self.store.read(name), name) for name in names]

    def materialise(self, record_digest: str, folder: Path) -> Path:
        """Write an artifact's files into `folder`, verified; returns the folder.

        The files are the caller's own copies. Raises ArtifactError naming the file, the hash expected and the hash
        found.
        """
        fetch_files(self.store, self.read_record(record_digest).files, folder, blob_name)
        return folder


def put_files(
    store: ObjectStore,
    folder: Path,
    name_of: Callable[[str], str],
    is_there: Callable[[str, int], bool] | None = None,
) -> list[FileEntry]:
    """Store every file of a folder as `name_of(sha256)`, in parallel; returns the entries sorted by path.

    Not those of which `is_there(name, size)` says that they need not be sent (default: an object of that size is).
    """
    is_there = is_there or (lambda name, size: store.size(name) == size)

    def put(path: Path) -> FileEntry:
        entry = FileEntry(path.relative_to(folder).as_posix(), path.stat().st_size, hash_file(path))
        if not is_there(name_of(entry.sha256), entry.bytes):
            store.put_file(name_of(entry.sha256), path, entry.sha256)
        return entry

    return sorted(parallel(put, _files(folder)), key=lambda entry: entry.path)


def fetch_files(store: ObjectStore, files: Iterable[FileEntry], folder: Path, name_of: Callable[[str], str]) -> None:
    """Write files from the store into `folder`, in parallel, and verify each. Raises ArtifactError."""

    def fetch(entry: FileEntry) -> None:
        target = folder / entry.path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            store.fetch(name_of(entry.sha256), target)
        except MissingObject:
            raise ArtifactError(f"{entry.path}: blob {name_of(entry.sha256)} is missing in store {store.url}") from None
        found = hash_file(target)
        if found != entry.sha256:
            raise ArtifactError(
                f"{entry.path} was altered in store {store.url}: expected sha256 {entry.sha256}, found {found}"
            )

    folder.mkdir(parents=True, exist_ok=True)
    parallel(fetch, files)


def missing_files(store: ObjectStore, files: Iterable[FileEntry], name_of: Callable[[str], str]) -> list[str]:
    """One sentence for each blob that is not there with the right size."""

    def look(entry: FileEntry) -> str | None:
        size = store.size(name_of(entry.sha256))
        if size == entry.bytes:
            return None
        found = "is missing" if size is None else f"has {size} bytes instead of {entry.bytes}"
        return f"blob {name_of(entry.sha256)} of {entry.path} {found}"

    return [fault for fault in parallel(look, files) if fault is not None]


def numbered(store: ObjectStore, prefix: str) -> dict[int, str]:
    """The objects `<prefix><number>.json` by number, ascending."""
    found = {}
    for name in store.list(prefix):
        number = name.removeprefix(prefix).removesuffix(".json")
        if number.isascii() and number.isdigit():
            found[int(number)] = name
    return dict(sorted(found.items()))


def append(store: ObjectStore, prefix: str, data: bytes) -> int:
    """Create `<prefix><n>.json` for the first free n from 1 up, whoever else appends; returns n."""
    number = max(numbered(store, prefix), default=0) + 1
    while not store.put_if_absent(f"{prefix}{number}.json", data):
        number += 1
    return number


def _files(folder: Path) -> list[Path]:
    found = []
    for parent, folders, files in os.walk(folder):
        for name in [*folders, *files]:
            path = Path(parent, name)
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise ArtifactError(f"{path} is a link or special file: artifacts hold plain files only")
            if path.is_file():
                found.append(path)
    return found


def hash_file(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            hasher.update(piece)
    return hasher.hexdigest()


def parallel(function: Callable[[_Item], _Result], items: Iterable[_Item], threads: int = TRANSFERS) -> list[_Result]:
    """Map over items with a few threads, results in order; the first failure is raised and the rest is not started."""
    listed = list(items)
    if len(listed) < 2:
        return [function(item) for item in listed]
    with ThreadPoolExecutor(min(threads, len(listed))) as pool:
        futures = [pool.submit(function, item) for item in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
