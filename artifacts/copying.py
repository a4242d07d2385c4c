"""Copying a record or a model version, with everything it was made of, from one store to another.

What an artifact was made of comes before it, its blobs before its record, and a release last: what has arrived at any
moment verifies, and copying again goes on where it stopped. All is checked on the way.
"""

from __future__ import annotations

import hashlib
import itertools
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from artifacts.canonical import digest
from artifacts.inventory import users_first
from artifacts.reach import Reach, reach
from artifacts.records import ArtifactError, FileEntry, Provenance, Record, key_payload
from artifacts.releases import Release, list_releases, publish
from artifacts.repository import (
    Repository,
    append,
    blob_name,
    fetch_files,
    key_name,
    missing_files,
    numbered,
    parallel,
    record_name,
)
from artifacts.reuse import NOTES
from artifacts.signing import signature_name
from artifacts.workspace import work_folder

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Copied:
    """What a copy amounted to. `bytes` were sent; the other blobs were there."""

    records: int
    blobs: int
    sent: int
    bytes: int


def copy_record(
    source: Repository, target: Repository, record_digest: str, work_root: Path, progress: Progress | None = None
) -> Copied:
    """Copy a record and all that it was made of: blobs, records, provenance, keys and notes of reuse.

    `progress` hears (bytes done, bytes in all). Raises ArtifactError for anything in the source that is missing or not
    what it should be: nothing that needs it is copied then.
    """
    found = reach(source, record_digest)
    if found.faults:
        raise ArtifactError(f"{found.faults[0].message}: nothing of it is copied")
    sizes = {entry.sha256: entry.bytes for entry in found.files}
    done, sent, sent_bytes = 0, 0, 0
    with work_folder(work_root, "copy") as folder:
        for each in reversed(users_first(found.records)):
            record = found.records[each]
            fresh = _copy_blobs(source, target, record, folder)
            _commit(source, target, each, record, found)
            sent, sent_bytes = sent + len(fresh), sent_bytes + sum(entry.bytes for entry in fresh)
            done += sum(sizes.pop(entry.sha256, 0) for entry in record.files)
            if progress is not None:
                progress(done, done + sum(sizes.values()))
    return Copied(len(found.records), len(found.files), sent, sent_bytes)


def copy_release(source: Repository, target: Repository, release: Release) -> int:
    """Publish in the target what was copied of a release; returns its version there.

    A record that has the name there already keeps that version. The same number and the same object, signature
    included, where they fit what the target holds; else the next free number. Raises ArtifactError for a release that
    was edited.
    """
    if release.seal is not None and not release.seal.is_whole:
        raise ArtifactError(f"{release.object} was edited, its seal does not fit what it says: it is not copied")
    there = [each for each in list_releases(target) if each.name == release.name]
    for each in there:
        if each.record == release.record:
            return each.version
    if _fits(target, release, there) and target.store.put_if_absent(release.object, source.store.read(release.object)):
        signature = signature_name(release)
        if source.store.size(signature) is not None:
            target.store.put_if_absent(signature, source.store.read(signature))
        return release.version
    return publish(target, release.name, release.record, release.metrics, release.created)


def _copy_blobs(source: Repository, target: Repository, record: Record, folder: Path) -> list[FileEntry]:
    """Send the blobs that are not there; returns them."""

    def is_missing(entry: FileEntry) -> bool:
        return target.store.size(blob_name(entry.sha256)) != entry.bytes

    def send(entry: FileEntry) -> None:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            fetch_files(source.store, [entry], Path(own), blob_name)
            target.store.put_file(blob_name(entry.sha256), Path(own) / entry.path, entry.sha256)

    distinct = list({entry.sha256: entry for entry in record.files}.values())
    missing = [entry for entry, is_gone in zip(distinct, parallel(is_missing, distinct), strict=True) if is_gone]
    parallel(send, missing)
    return missing


def _commit(source: Repository, target: Repository, record_digest: str, record: Record, found: Reach) -> None:
    """Make a record visible in the target whose blobs have arrived, with all that is told of it."""
    missing = missing_files(target.store, record.files, blob_name)
    if missing:
        raise ArtifactError(f"{record.step}: {missing[0]} in {target.store.url} although it was just sent: copy again")
    if not target.store.put_if_absent(record_name(record_digest), record.to_json()):
        target.read_record(record_digest)
    _copy_provenance(source, target, record_digest)
    for name in list(source.store.list(f"{NOTES}{record_digest}/")):
        target.store.put_if_absent(name, source.store.read(name))
    contents = {role: found.records[each].content_digest for role, each in record.inputs.items()}
    key = digest(key_payload(record.step, record.code.fingerprint, record.config, contents))
    answer = source.read_key(key)
    if answer is not None and answer.record == record_digest:
        target.store.put_if_absent(key_name(key), source.store.read(key_name(key)))


def _copy_provenance(source: Repository, target: Repository, record_digest: str) -> None:
    """Under the same numbers where those are free; a making that the target knows is not told twice."""
    prefix = f"provenance/{record_digest}/"
    known = {target.store.read(name) for name in numbered(target.store, prefix).values()}
    for name in numbered(source.store, prefix).values():
        data = source.store.read(name)
        told = Provenance.from_json(data, name)
        if told.record != record_digest:
            raise ArtifactError(f"{name} speaks of another record, {told.record}: nothing that needs it is copied")
        if data not in known and not target.store.put_if_absent(name, data):
            append(target.store, prefix, data)


def _fits(target: Repository, release: Release, there: list[Release]) -> bool:
    """Whether the release object itself is true in the target: its number, its history, its provenance."""
    if release.seal is None:
        return False
    versions = sorted([*there, release], key=lambda each: each.version)
    for before, after in itertools.pairwise(versions):
        if before.version == after.version or (after.seal is not None and after.seal.previous != before.document):
            return False
    return all(
        target.store.size(name) is not None and hashlib.sha256(target.store.read(name)).hexdigest() == promised
        for name, promised in release.seal.provenance.items()
    )
