"""Whether releases still say what they said when they were made."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from artifacts.reach import Fault, Reach
from artifacts.records import ArtifactError
from artifacts.releases import Release, list_releases, release_name
from artifacts.repository import Repository
from artifacts.store import MissingObject


def release_faults(repository: Repository, record_digest: str, found: Reach) -> list[Fault]:
    """What is wrong with every version of each name that a record was released under.

    All versions, because each holds the hash of the one before it.
    """
    releases = list_releases(repository)
    names = {release.name for release in releases if release.record == record_digest}
    faults: list[Fault] = []
    before: Release | None = None
    for release in releases:
        if release.name not in names:
            continue
        faults.extend(_own(repository, release, found))
        if before is not None and before.name == release.name:
            faults.extend(_history(before, release))
        before = release
    return faults


def _own(repository: Repository, release: Release, found: Reach) -> Iterator[Fault]:
    label = f"release {release.name}@{release.version}"
    try:
        record = found.records.get(release.record) or repository.read_record(release.record)
    except ArtifactError:
        message = f"{label} points to record {release.record}, which cannot be read"
        yield Fault("broken-release", release.object, message)
        return
    if release.seal is None:
        return
    if record.content_digest != release.seal.content:
        message = (
            f"{label} points elsewhere: to record {release.record} with content {record.content_digest}; "
            f"released was content {release.seal.content}"
        )
        yield Fault("repointed-release", release.object, message)
    elif not release.seal.is_whole:
        yield Fault("altered-release", release.object, f"{label} was edited: its seal does not fit what it says")
    if release.record in found.records:
        yield from _provenance(repository, release, found, label)


def _provenance(repository: Repository, release: Release, found: Reach, label: str) -> Iterator[Fault]:
    assert release.seal is not None
    for name, promised in release.seal.provenance.items():
        record = found.records.get(name.split("/")[1])
        who = f"a making of {record.name}" if record is not None else "a making"
        try:
            now = hashlib.sha256(repository.store.read(name)).hexdigest()
        except MissingObject:
            yield Fault("missing-provenance", name, f"{who} is missing; it was there when {label} was made")
            continue
        if now != promised:
            message = f"{who} was edited since {label} was made: expected sha256 {promised}, found {now}"
            yield Fault("altered-provenance", name, message)


def _history(before: Release, release: Release) -> Iterator[Fault]:
    if release.seal is None or release.seal.previous == before.document:
        return
    if release.version != before.version + 1:
        name = release_name(release.name, release.version - 1)
        yield Fault("missing-release", name, f"{name} is missing; release {release.name}@{release.version} followed it")
        return
    message = (
        f"release {before.name}@{before.version} is not the one that {release.name}@{release.version} followed: "
        f"expected sha256 {release.seal.previous or 'of none'}, found {before.document}"
    )
    yield Fault("rewritten-release", before.object, message)
