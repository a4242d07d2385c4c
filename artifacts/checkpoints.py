"""Checkpoints of a stage in progress, kept in the store under the stage's cache key.

    ckpt/<key>/blobs/<sha256>         files, shared between this key's checkpoints
    ckpt/<key>/manifests/<step>.json  {"step", "files", "details"}: created last, it is the commit
    ckpt/<key>/attempts/<n>.json      one object for every time somebody started to work on the key

Whichever machine or run continues finds them, because the key is all it needs. They are garbage once the record exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts.canonical import canonical_json
from artifacts.records import FILE_FIELDS, ArtifactError, FileEntry, check_fields, check_value
from artifacts.repository import append, fetch_files, missing_files, numbered, put_files
from artifacts.store import ObjectStore

MANIFEST_FIELDS: Mapping[str, type] = {"step": int, "files": list, "details": dict}


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
    """The checkpoints of one cache key. One writer at a time; any number of readers."""

    def __init__(self, store: ObjectStore, key: str) -> None:
        self.store = store
        self.prefix = f"ckpt/{key}/"

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> Manifest:
        """Store a folder as the checkpoint after `step`: blobs first, then the manifest, which commits it.

        A whole checkpoint of that step stays as it is and is returned: under one key, a step has one state. Raises
        ArtifactError for an empty folder or a negative step, CanonicalError for details that are not plain data.
        """
        if step < 0:
            raise ArtifactError(f"checkpoint step {step} must not be negative")
        existing = self._manifest(self._name(step))
        if existing is not None and not missing_files(self.store, existing.files, self._blob):
            return existing
        canonical_json(details)
        manifest = Manifest(step, tuple(put_files(self.store, folder, self._blob)), details)
        if not manifest.files:
            raise ArtifactError(f"checkpoint step {step}: {folder} is empty")
        if existing is not None:
            self.store.delete(self._name(step))
        if not self.store.put_if_absent(self._name(step), manifest.to_json()):
            return self._manifest(self._name(step)) or manifest
        return manifest

    def latest(self, before: int | None = None) -> Manifest | None:
        """The newest checkpoint (below step `before`) whose blobs are all there with the right size, or None."""
        for step, name in reversed(self._names().items()):
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

    def prune(self, keep: int) -> list[int]:
        """Delete all but the newest `keep` checkpoints, with blobs no other one needs; returns the steps deleted.

        Manifests go first, so an interruption leaves unused blobs and never a manifest without them. Call it between
        saves.
        """
        if keep < 1:
            raise ArtifactError(f"cannot keep {keep} checkpoints: keep at least 1")
        names = self._names()
        manifests = {step: self._manifest(name) for step, name in names.items()}
        old, kept = list(names)[:-keep], list(names)[-keep:]
        for step in old:
            self.store.delete(names[step])
        needed = {entry.sha256 for step in kept for entry in _files(manifests[step])}
        unused = {entry.sha256 for step in old for entry in _files(manifests[step])} - needed
        for sha256 in sorted(unused):
            self.store.delete(self._blob(sha256))
        return old

    def clear(self) -> None:
        """Delete everything under this key, manifests before blobs: for when the record is committed."""
        for part in ("manifests/", "blobs/", "attempts/"):
            for name in list(self.store.list(self.prefix + part)):
                self.store.delete(name)

    def begin_attempt(self, details: Mapping[str, Any]) -> int:
        """Note that work on this key starts; returns how many earlier attempts did not finish."""
        return append(self.store, self.prefix + "attempts/", canonical_json(details)) - 1

    def _names(self) -> dict[int, str]:
        return numbered(self.store, self.prefix + "manifests/")

    def _name(self, step: int) -> str:
        return f"{self.prefix}manifests/{step}.json"

    def _blob(self, sha256: str) -> str:
        return f"{self.prefix}blobs/{sha256}"

    def _manifest(self, name: str) -> Manifest | None:
        """A manifest, or None when there is none (any more)."""
        if self.store.size(name) is None:
            return None
        return Manifest.from_json(self.store.read(name), name)


def _files(manifest: Manifest | None) -> tuple[FileEntry, ...]:
    return manifest.files if manifest is not None else ()
