"""Lineage: from a record down to the raw sources, to read (`tree`) and to check (`verify`)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.canonical import digest
from artifacts.records import ArtifactError, FileEntry, Record, key_payload
from artifacts.releases import list_releases
from artifacts.repository import Repository, blob_name, key_name, numbered, record_name
from artifacts.store import MissingObject

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Made:
    """The latest making of a record: when it was finished, from which commit, on what; `times` counts all makings."""

    finished: str | None
    git: Mapping[str, Any]
    environment: Mapping[str, Any]
    times: int


@dataclass(frozen=True)
class Node:
    """One record in the tree.

    `role` says what it is to the record above; one that was shown before is `repeated`, bare.
    """

    role: str | None
    record: str
    step: str
    kind: str
    name: str
    files: int
    bytes: int
    config: Mapping[str, Any]
    code: str
    made: Made | None
    repeated: bool
    inputs: tuple[Node, ...]


@dataclass(frozen=True)
class Fault:
    """One lie: what kind, the object in the store that tells it, and a sentence."""

    kind: str
    object: str
    message: str


@dataclass(frozen=True)
class Reach:
    """The records that a record was made from, itself included, and what is wrong with the records themselves."""

    records: Mapping[str, Record]
    faults: tuple[Fault, ...]

    @property
    def files(self) -> dict[FileEntry, str]:
        """Every distinct blob, with the first file that it is: `step: path`."""
        found: dict[tuple[str, int], tuple[FileEntry, str]] = {}
        for record in self.records.values():
            for entry in record.files:
                found.setdefault((entry.sha256, entry.bytes), (entry, f"{record.step}: {entry.path}"))
        return dict(found.values())


def tree(repository: Repository, record_digest: str) -> Node:
    """The record and, below it, what it was made from, down to the records without inputs.

    Raises ArtifactError for a record that is missing or altered.
    """
    return _node(repository, record_digest, None, set())


def reach(repository: Repository, record_digest: str) -> Reach:
    """Every record reachable from one, by digest; records that are missing or altered become faults."""
    records: dict[str, Record] = {}
    faults: list[Fault] = []
    seen: set[str] = set()
    waiting = [(record_digest, "")]
    while waiting:
        current, asked_by = waiting.pop(0)
        if current in seen:
            continue
        seen.add(current)
        try:
            records[current] = repository.read_record(current)
        except ArtifactError as error:
            kind = "missing-record" if repository.store.size(record_name(current)) is None else "altered-record"
            faults.append(Fault(kind, record_name(current), f"{asked_by}{error}"))
            continue
        step = records[current].step
        waiting.extend((each, f"input {role!r} of {step}: ") for role, each in sorted(records[current].inputs.items()))
    return Reach(records, tuple(faults))


def verify(repository: Repository, record_digest: str, progress: Progress | None = None) -> list[Fault]:
    """Re-read and re-hash everything that a record was made from; returns every fault found, none when all is true.

    Checked: that records hash to their digests, inputs exist, blobs are there with the bytes promised, cache keys
    answer with a record of theirs, provenance speaks of its own record, releases name records that exist. `progress`
    hears (bytes read, bytes in all). Raises StoreError when the store fails.
    """
    found = reach(repository, record_digest)
    faults = [*found.faults, *_release_faults(repository, record_digest, found)]
    for current, record in found.records.items():
        faults.extend(_provenance_faults(repository, current, record))
        faults.extend(_key_faults(repository, current, record))
    return faults + _blob_faults(repository, found, progress or (lambda done, total: None))


def _node(repository: Repository, record_digest: str, role: str | None, shown: set[str]) -> Node:
    record = repository.read_record(record_digest)
    repeated = record_digest in shown
    shown.add(record_digest)
    inputs = () if repeated else sorted(record.inputs.items())
    return Node(
        role=role,
        record=record_digest,
        step=record.step,
        kind=record.kind,
        name=record.name,
        files=len(record.files),
        bytes=record.total_bytes,
        config=record.config,
        code=record.code.fingerprint,
        made=_made(repository, record_digest),
        repeated=repeated,
        inputs=tuple(_node(repository, each, name, shown) for name, each in inputs),
    )


def _made(repository: Repository, record_digest: str) -> Made | None:
    makings = repository.provenances(record_digest)
    if not makings:
        return None
    last = makings[-1]
    return Made(last.run.get("finished"), last.git, last.environment, len(makings))


def _release_faults(repository: Repository, record_digest: str, found: Reach) -> list[Fault]:
    if record_digest in found.records:
        return []
    return [
        Fault(
            "broken-release",
            f"releases/{release.name}/{release.version}.json",
            f"release {release.name}@{release.version} points to record {record_digest}, which cannot be read",
        )
        for release in list_releases(repository)
        if release.record == record_digest
    ]


def _provenance_faults(repository: Repository, record_digest: str, record: Record) -> list[Fault]:
    try:
        makings = repository.provenances(record_digest)
    except ArtifactError as error:
        return [Fault("altered-provenance", f"provenance/{record_digest}", f"{record.step}: {error}")]
    names = list(numbered(repository.store, f"provenance/{record_digest}/").values())
    return [
        Fault("altered-provenance", name, f"{record.step}: {name} speaks of another record, {making.record}")
        for name, making in zip(names, makings, strict=True)
        if making.record != record_digest
    ]


def _key_faults(repository: Repository, record_digest: str, record: Record) -> list[Fault]:
    """What is wrong with the cache key of this record: if it is there, it must answer with a record that fits it."""
    key = _key_of(repository, record)
    if key is None:
        return []
    try:
        found = repository.read_key(key)
        if found is None or found.record == record_digest:
            return []
        if _key_of(repository, repository.read_record(found.record)) == key:
            return []
    except ArtifactError as error:
        return [Fault("altered-key", key_name(key), f"{record.step}: cache key {key[:12]}: {error}")]
    message = f"{record.step}: cache key {key[:12]} points elsewhere, to record {found.record}, which does not fit it"
    return [Fault("altered-key", key_name(key), message)]


def _key_of(repository: Repository, record: Record) -> str | None:
    """The cache key that a record answers; None when an input cannot be read, which is a fault of its own."""
    try:
        contents = {role: repository.read_record(each).content_digest for role, each in record.inputs.items()}
    except ArtifactError:
        return None
    return digest(key_payload(record.step, record.code.fingerprint, record.config, contents))


def _blob_faults(repository: Repository, found: Reach, progress: Progress) -> list[Fault]:
    files = found.files
    owners = {entry.sha256: owner for entry, owner in files.items()}
    total = sum(entry.bytes for entry in files)
    done = 0
    faults = []
    for entry, owner in files.items():
        hasher = hashlib.sha256()
        size = 0
        try:
            for piece in repository.store.stream(blob_name(entry.sha256)):
                hasher.update(piece)
                size += len(piece)
                progress(min(done + size, total), total)
        except MissingObject:
            faults.append(Fault("missing-blob", blob_name(entry.sha256), f"{owner}: its blob is missing"))
        else:
            faults.extend(_compare(entry, owner, size, hasher.hexdigest(), owners))
        done += entry.bytes
    return faults


def _compare(entry: FileEntry, owner: str, size: int, sha256: str, owners: Mapping[str, str]) -> list[Fault]:
    name = blob_name(entry.sha256)
    if size < entry.bytes:
        return [Fault("truncated-blob", name, f"{owner}: {size} bytes of {entry.bytes} are left")]
    if sha256 == entry.sha256 and size == entry.bytes:
        return []
    instead = f", which is {owners[sha256]}" if sha256 in owners else ""
    message = f"{owner}: expected sha256 {entry.sha256}, {entry.bytes} bytes; found {sha256}{instead}, {size} bytes"
    return [Fault("altered-blob", name, message)]
