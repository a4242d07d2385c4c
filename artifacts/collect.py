"""Collecting garbage: what nobody needs (artifacts.inventory) is named, and then deleted so that nothing can break.

Keys go first, then records, those that others were made of last, then what is told of them, then blobs. Whatever an
interrupted collection leaves behind verifies, and the next one goes on. Between the kinds the store is looked at again:
what somebody came to need meanwhile stays.

A writer puts its blobs before the record that names them, so nothing is deleted that was written after the first look
less a grace; a writer that finds an old blob in place writes it again (`Repository.put_folder`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from artifacts.file_store import TEMPORARY, FileStore
from artifacts.inventory import Inventory, Looker, users_first
from artifacts.records import ArtifactError, Warn, silent
from artifacts.repository import READERS, RESEND_AFTER_SECONDS, Repository, blob_name, key_name, parallel, record_name
from artifacts.reuse import NOTES

DAY = 86_400.0


@dataclass(frozen=True)
class Policy:
    """What is kept although nobody names it: what was made or found in the last `recent_seconds`, and every object
    that was written in the last `grace_seconds`.
    """

    recent_seconds: float = 7 * DAY
    grace_seconds: float = 1 * DAY

    def __post_init__(self) -> None:
        if self.recent_seconds < 0 or self.grace_seconds <= RESEND_AFTER_SECONDS:
            least = RESEND_AFTER_SECONDS / 3600
            raise ArtifactError(f"a collection needs a grace of more than {least:g} h: writers count on that")


@dataclass(frozen=True)
class Garbage:
    """Object names by kind, in the order in which they are deleted, and the bytes of all together."""

    keys: tuple[str, ...] = ()
    records: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    provenance: tuple[str, ...] = ()
    blobs: tuple[str, ...] = ()
    checkpoints: tuple[str, ...] = ()
    temporary: tuple[str, ...] = ()
    bytes: int = 0

    def kinds(self) -> dict[str, tuple[str, ...]]:
        """The names by kind."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name != "bytes"}

    @property
    def is_empty(self) -> bool:
        return not any(self.kinds().values())


@dataclass
class Collector:
    """One collection of a store. `clock` gives Unix seconds; `warn` hears what cannot be judged and is kept."""

    repository: Repository
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], float] = time.time
    warn: Warn = silent

    def __post_init__(self) -> None:
        self._looker = Looker(self.repository, self.warn)
        self._limit = self.clock() - self.policy.grace_seconds

    def find(self) -> Garbage:
        """What could be deleted now. Deletes nothing.

        Raises ArtifactError when something that is needed cannot be read.
        """
        found = self._garbage()
        store = self.repository.store
        names = [name for kind, each in found.kinds().items() if kind != "temporary" for name in each]
        sizes = parallel(lambda name: store.size(name) or 0, names, READERS)
        return replace(found, bytes=sum(sizes) + sum(_file_size(self._path(name)) for name in found.temporary))

    def sweep(self, found: Garbage) -> Garbage:
        """Delete what `find` found and what is garbage still; returns what was deleted (without `bytes`).

        Safe at any moment, beside any writer, and to interrupt.
        """
        keys = self._delete(found.keys)
        records = _common(self._garbage().records, found.records)
        # One after the other: a record goes before those that it was made of.
        gone = tuple(name for each in records for name in self._delete([each]))
        still = self._garbage()
        notes, provenance, blobs, checkpoints = (
            self._delete(_common(still.kinds()[kind], found.kinds()[kind]))
            for kind in ("notes", "provenance", "blobs", "checkpoints")
        )
        for name in found.temporary:
            self._path(name).unlink(missing_ok=True)
        return Garbage(keys, gone, notes, provenance, blobs, checkpoints, found.temporary)

    def _garbage(self) -> Garbage:
        store = self.repository.store
        # Before the records: what is listed here and named by no record listed later is named by nobody.
        blobs, told = list(store.list("objects/")), [*store.list(NOTES), *store.list("provenance/")]
        inventory = self._looker.look(self.clock(), max(self.policy.recent_seconds, self.policy.grace_seconds))
        for fault in inventory.unreadable.values():
            self.warn(f"kept, and no blob is collected until it is restored or deleted: {fault}")
        kept = inventory.needed.keys()
        gone = {digest: record for digest, record in inventory.records.items() if digest not in kept}
        used = {blob_name(entry.sha256) for digest in kept for entry in inventory.records[digest].files}
        told = [name for name in told if name.split("/")[1] not in kept | inventory.unreadable.keys()]
        return Garbage(
            keys=tuple(key_name(key.key) for key in inventory.keys if key.record in gone),
            records=tuple(record_name(digest) for digest in users_first(gone)),
            notes=self._old(name for name in told if name.startswith(NOTES)),
            provenance=self._old(name for name in told if not name.startswith(NOTES)),
            blobs=() if inventory.unreadable else self._old(name for name in blobs if name not in used),
            checkpoints=self._checkpoints(inventory),
            temporary=tuple(self._temporary()),
        )

    def _checkpoints(self, inventory: Inventory) -> tuple[str, ...]:
        """All under the keys that nobody works on and that are finished, or were left long ago; the lease last."""
        young_since = self.clock() - max(self.policy.recent_seconds, self.policy.grace_seconds)
        order = ("manifests", "blobs", "attempts")
        left = [making for making in inventory.makings if not inventory.is_alive(making, young_since)]
        names = [name for making in left if making.touched < self._limit for name in making.objects]
        return tuple(sorted(names, key=lambda name: order.index(part) if (part := name.split("/")[2]) in order else 9))

    def _temporary(self) -> Iterator[str]:
        """Files that a killed writer left in a folder store."""
        if isinstance(self.repository.store, FileStore):
            for path in sorted((self.repository.store.root / TEMPORARY).glob("*")):
                with contextlib.suppress(FileNotFoundError):  # its writer just gave it a name
                    if path.stat().st_mtime < self._limit:
                        yield path.name

    def _path(self, name: str) -> Path:
        assert isinstance(self.repository.store, FileStore)
        return self.repository.store.root / TEMPORARY / name

    def _old(self, names: Iterable[str]) -> tuple[str, ...]:
        listed = list(names)
        ages = parallel(self._is_old, listed, READERS)
        return tuple(name for name, is_old in zip(listed, ages, strict=True) if is_old)

    def _is_old(self, name: str) -> bool:
        written = self.repository.store.modified(name)
        return written is not None and written < self._limit

    def _delete(self, names: Iterable[str]) -> tuple[str, ...]:
        """Delete those that are old at this very moment; returns them."""

        def delete(name: str) -> bool:
            if not self._is_old(name):
                return False
            self.repository.store.delete(name)
            return True

        listed = list(names)
        done = parallel(delete, listed, READERS)
        return tuple(name for name, was_deleted in zip(listed, done, strict=True) if was_deleted)


def _common(names: Iterable[str], found: Iterable[str]) -> list[str]:
    wanted = set(found)
    return [name for name in names if name in wanted]


def _file_size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
