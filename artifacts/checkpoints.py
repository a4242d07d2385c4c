"""Checkpoints of a stage in progress, kept in the store under the stage's cache key.

    ckpt/<key>/blobs/<sha256>                      files, shared between this key's checkpoints
    ckpt/<key>/manifests/<generation>-<step>.json  {"step", "files", "details"}: created last, it is the commit
    ckpt/<key>/attempts/<n>.json                   one object for every time somebody started to work on the key

Whichever machine or run continues finds them, because the key is all it needs. They are garbage once the record exists.

The generation is that of the writer's lease. A holder that was taken over renews before each commit, fails and writes
nothing; should it have been stopped between the two for longer than its lease lived, its late manifest still ranks
below all that its successor wrote. A manifest without a generation was written without a lease and ranks lowest.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts.canonical import canonical_json
from artifacts.lease import Lease
from artifacts.records import FILE_FIELDS, ArtifactError, FileEntry, check_fields, check_value
from artifacts.repository import append, fetch_files, missing_files, put_files
from artifacts.store import MissingObject, ObjectStore

MANIFEST_FIELDS: Mapping[str, type] = {"step": int, "files": list, "details": dict}

_MANIFEST_NAME = re.compile(r"(?:(\d+)-)?(\d+)\.json", re.ASCII)

_Place = tuple[int, int]  # (generation, step): in this order a checkpoint is newer than another


@dataclass(frozen=True)
class Manifest:
    """A committed checkpoint: the step it was taken after, its files, and what the stage wrote beside it."""

    step: int
    files: tuple[FileEntry, ...]
    details: Mapping[str, Any]

    def to_json(self) -> bytes:
        """Canonical JSON. Raises CanonicalError for details without canonical form."""
        files = [asdict(entry) for entry in self.files]
        return canonical_json({"step": self.step, "files": files, "details": self.details})

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Manifest:
        """Read a manifest strictly. Raises ArtifactError."""
        fields = check_fields(data, where, MANIFEST_FIELDS)
        files = tuple(FileEntry(**check_value(each, f"{where}: a file", FILE_FIELDS)) for each in fields["files"])
        return cls(fields["step"], files, fields["details"])


class CheckpointStore:
    """The checkpoints of one cache key. One writer at a time, which holds `lease`; any number of readers, without.

    What writes raises LeaseLost once the lease is lost.
    """

    def __init__(self, store: ObjectStore, key: str, lease: Lease | None = None) -> None:
        self.store = store
        self.prefix = f"ckpt/{key}/"
        self._lease = lease
        self._generation = 0 if lease is None else lease.generation

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> Manifest:
        """Store a folder as the checkpoint after `step`: blobs first, then the manifest, which commits it.

        A whole checkpoint of that step stays as it is and is returned: under one key, a step has one state. Raises
        ArtifactError for an empty folder or a negative step, CanonicalError for details that are not plain data.
        """
        if step < 0:
            raise ArtifactError(f"checkpoint step {step} must not be negative")
        name = self._name(step)
        existing = self._manifest(name)
        if existing is not None and not missing_files(self.store, existing.files, self._blob):
            return existing
        canonical_json(details)
        manifest = Manifest(step, tuple(put_files(self.store, folder, self._blob)), details)
        if not manifest.files:
            raise ArtifactError(f"checkpoint step {step}: {folder} is empty")
        self._check_lease()
        if existing is not None:
            self.store.delete(name)
        if not self.store.put_if_absent(name, manifest.to_json()):
            return self._manifest(name) or manifest
        return manifest

    def latest(self, before: int | None = None) -> Manifest | None:
        """The newest checkpoint (below step `before`) whose blobs are all there with the right size, or None."""
        for (_, step), name in reversed(self._names().items()):
            if before is not None and step >= before:
                continue
            manifest = self._manifest(name)
            if manifest is not None and not missing_files(self.store, manifest.files, self._blob):
                return manifest
        return None

    def restore(self, manifest: Manifest, folder: Path) -> Path:
        """Write a checkpoint's files into `folder`, verified; returns the folder.

        Raises ArtifactError naming the file.
        """
        fetch_files(self.store, manifest.files, folder, self._blob)
        return folder

    def prune(self, keep: int, best: str | None = None) -> list[int]:
        """Delete all but the newest `keep` checkpoints, with blobs no other one needs; returns the steps deleted.

        `best` names one of the numbers in `details["figures"]`: the checkpoint with the lowest one is kept too.
        Manifests go first, so an interruption leaves unused blobs and never a manifest without them. Call it between
        saves.
        """
        if keep < 1:
            raise ArtifactError(f"cannot keep {keep} checkpoints: keep at least 1")
        names = self._names()
        if len(names) <= keep:
            return []
        manifests = {place: self._manifest(name) for place, name in names.items()}
        kept = {*list(names)[-keep:], *_lowest(manifests, best)}
        old = [place for place in names if place not in kept]
        self._check_lease()
        for place in old:
            self.store.delete(names[place])
        needed = _hashes(manifests[place] for place in kept)
        for sha256 in sorted(_hashes(manifests[place] for place in old) - needed):
            self.store.delete(self._blob(sha256))
        return [step for _, step in old]

    def clear(self) -> None:
        """Delete everything under this key, manifests before blobs: for when the record is committed."""
        for part in ("manifests/", "blobs/", "attempts/"):
            for name in list(self.store.list(self.prefix + part)):
                self.store.delete(name)

    def begin_attempt(self, details: Mapping[str, Any]) -> int:
        """Note that work on this key starts; returns how many earlier attempts did not finish.

        What those uploaded and did not live to commit is deleted.
        """
        earlier = append(self.store, self.prefix + "attempts/", canonical_json(details)) - 1
        if earlier:
            needed = {self._blob(sha256) for sha256 in _hashes(map(self._manifest, self._names().values()))}
            for name in list(self.store.list(self.prefix + "blobs/")):
                if name not in needed:
                    self.store.delete(name)
        return earlier

    def _check_lease(self) -> None:
        if self._lease is not None:
            self._lease.check()

    def _names(self) -> dict[_Place, str]:
        """The manifests by place, oldest first."""
        start = f"{self.prefix}manifests/"
        found = {}
        for name in self.store.list(start):
            if match := _MANIFEST_NAME.fullmatch(name.removeprefix(start)):
                found[int(match[1] or 0), int(match[2])] = name
        return dict(sorted(found.items()))

    def _name(self, step: int) -> str:
        number = f"{self._generation}-{step}" if self._generation else f"{step}"
        return f"{self.prefix}manifests/{number}.json"

    def _blob(self, sha256: str) -> str:
        return f"{self.prefix}blobs/{sha256}"

    def _manifest(self, name: str) -> Manifest | None:
        """A manifest, or None when there is none (any more)."""
        try:
            return Manifest.from_json(self.store.read(name), name)
        except MissingObject:
            return None


def _hashes(manifests: Iterable[Manifest | None]) -> set[str]:
    return {entry.sha256 for manifest in manifests if manifest is not None for entry in manifest.files}


def _lowest(manifests: Mapping[_Place, Manifest | None], figure: str | None) -> list[_Place]:
    """The place with the lowest number of that name among its figures, if any has one; of equals the newest."""
    rated = {
        place: manifest.details["figures"][figure]
        for place, manifest in manifests.items()
        if manifest is not None and figure in manifest.details.get("figures", {})
    }
    return [min(reversed(list(rated)), key=lambda place: float(rated[place]))] if rated else []
