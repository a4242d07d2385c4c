"""Lineage: from a record down to the raw sources, to read (`tree`) and to check (`verify`)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.blob_check import Progress, blob_faults
from artifacts.canonical import digest
from artifacts.reach import Fault, reach
from artifacts.records import ArtifactError, Provenance, Record, key_payload
from artifacts.release_check import release_faults
from artifacts.repository import Repository, key_name, numbered
from artifacts.signing import signature_faults


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


def tree(repository: Repository, record_digest: str) -> Node:
    """The record and, below it, what it was made from, down to the records without inputs.

    Raises ArtifactError for a record that is missing or altered.
    """
    return _node(repository, record_digest, None, set())


def verify(
    repository: Repository, record_digest: str, progress: Progress | None = None, public_key: Path | None = None
) -> list[Fault]:
    """Re-read and re-hash everything that a record was made from; returns every fault found, none when all is true.

    Checked: that records hash to their digests, inputs exist, blobs are there with the bytes promised, cache keys
    answer with a record of theirs, provenance speaks of its own record and is what it was when it was released, and
    releases of this record, and those before and after them, are as they were made and signed (with that key, when
    there is a `public_key` in PEM). `progress` hears (bytes read, bytes in all). Raises StoreError when the store
    fails, SigningError for a key that cannot be used.
    """
    found = reach(repository, record_digest)
    faults = list(found.faults)
    for current, record in found.records.items():
        faults.extend(_provenance_faults(repository, current, record))
        faults.extend(_key_faults(repository, current, record))
    faults.extend(release_faults(repository, record_digest, found))
    faults.extend(signature_faults(repository, record_digest, public_key))
    faults.extend(blob_faults(repository.store, found.files, progress or (lambda done, total: None)))
    first: dict[tuple[str, str], Fault] = {}
    for fault in faults:
        first.setdefault((fault.kind, fault.object), fault)
    return list(first.values())


def cache_key_of(repository: Repository, record: Record) -> str | None:
    """The cache key that a record answers; None when an input cannot be read, which is a fault of its own."""
    try:
        contents = {role: repository.read_record(each).content_digest for role, each in record.inputs.items()}
    except ArtifactError:
        return None
    return digest(key_payload(record.step, record.code.fingerprint, record.config, contents))


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


def _provenance_faults(repository: Repository, record_digest: str, record: Record) -> Iterator[Fault]:
    for name in numbered(repository.store, f"provenance/{record_digest}/").values():
        try:
            making = Provenance.from_json(repository.store.read(name), name)
        except ArtifactError as error:
            yield Fault("altered-provenance", name, f"{record.step}: {error}")
            continue
        if making.record != record_digest:
            message = f"{record.step}: {name} speaks of another record, {making.record}"
            yield Fault("altered-provenance", name, message)


def _key_faults(repository: Repository, record_digest: str, record: Record) -> list[Fault]:
    """What is wrong with the cache key of this record: if it is there, it must answer with a record that fits it."""
    key = cache_key_of(repository, record)
    if key is None:
        return []
    try:
        found = repository.read_key(key)
        if found is None or found.record == record_digest:
            return []
        if cache_key_of(repository, repository.read_record(found.record)) == key:
            return []
    except ArtifactError as error:
        return [Fault("altered-key", key_name(key), f"{record.step}: cache key {key[:12]}: {error}")]
    message = f"{record.step}: cache key {key[:12]} points elsewhere, to record {found.record}, which does not fit it"
    return [Fault("altered-key", key_name(key), message)]
