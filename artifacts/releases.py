"""Releases: names for records, numbered from 1 up, append-only (`releases/<name>/<version>.json`).

A release holds enough to notice that somebody edited it, or what it speaks of: its own name and number, the content
that its record had, the hashes of every provenance below it, the hash of the release before it, and over all of that a
seal. `artifacts.release_check` compares; who rewrites all of it consistently is caught by a signature alone
(`artifacts.signing`).
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.canonical import canonical_json, digest, plain
from artifacts.reach import reach
from artifacts.records import ArtifactError, check_value, read_json
from artifacts.repository import Repository, numbered, parallel, stem

UNSEALED_FIELDS: Mapping[str, type] = {"record": str, "metrics": dict, "created": str}
"""What releases hold that were made before there were seals."""

SEALED_FIELDS: Mapping[str, type] = {
    **UNSEALED_FIELDS,
    "name": str,
    "version": int,
    "content": str,
    "provenance": dict,
    "previous": str,
    "seal": str,
}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class UnknownModel(ArtifactError):
    """A model that the store does not know, or a prefix that fits more than one. The message names what there is."""


@dataclass(frozen=True)
class Release:
    """A named model version: the record it stands for, the metrics it was released with, and when (ISO 8601).

    `document` is the sha256 of the object that says so, `seal` what that object holds to be checked against: None for
    a release made before there were seals.
    """

    name: str
    version: int
    record: str
    metrics: Mapping[str, Any]
    created: str
    document: str
    seal: Seal | None

    @property
    def object(self) -> str:
        """Where the store keeps it."""
        return release_name(self.name, self.version)


@dataclass(frozen=True)
class Seal:
    """What a release must agree with.

    `content` is its record's content digest, `provenance` the sha256 of each provenance object below it, `previous` the
    sha256 of the release before it (empty for the first). `is_whole`: name and number are the object's own, and the
    seal is the digest of all the rest.
    """

    content: str
    provenance: Mapping[str, str]
    previous: str
    is_whole: bool


def release_name(name: str, version: int) -> str:
    """Where the store keeps a release."""
    return f"releases/{name}/{version}.json"


def publish(repository: Repository, name: str, record_digest: str, metrics: Mapping[str, Any], created: str) -> int:
    """Release a record as the next version of `name`; returns the version.

    A record that is the latest version already keeps its number. Of concurrent releases each gets a number of its
    own. Raises ArtifactError for a name that is not lower-case letters, digits and `._-`, and for a record that does
    not exist.
    """
    if not _NAME.fullmatch(name):
        raise ArtifactError(
            f"release name {name!r} must be lower-case letters, digits and ._- and start with one of the first"
        )
    content = repository.read_record(record_digest).content_digest
    fields: dict[str, Any] | None = None
    while True:
        versions = _versions(repository, name)
        if versions and versions[-1].record == record_digest:
            return versions[-1].version
        if fields is None:  # only now: a version that is there already is found without reading all its provenance
            fields = {
                "record": record_digest,
                "metrics": plain(metrics, f"metrics of {name}"),
                "created": created,
                "content": content,
                "provenance": provenance_hashes(repository, record_digest),
            }
        version = versions[-1].version + 1 if versions else 1
        place = {"name": name, "version": version, "previous": versions[-1].document if versions else ""}
        document = canonical_json(fields | place | {"seal": digest(fields | place)})
        if repository.store.put_if_absent(release_name(name, version), document):
            return version


def provenance_hashes(repository: Repository, record_digest: str) -> dict[str, str]:
    """The sha256 of every provenance object of a record and of all that it was made from, by object name.

    Raises ArtifactError for a record below that is missing or altered.
    """
    reached = reach(repository, record_digest)
    if reached.faults:
        raise ArtifactError(reached.faults[0].message)
    store = repository.store

    def hashes(record: str) -> dict[str, str]:
        names = numbered(store, f"provenance/{record}/").values()
        return {name: hashlib.sha256(store.read(name)).hexdigest() for name in names}

    return {name: value for each in parallel(hashes, sorted(reached.records)) for name, value in each.items()}


def list_releases(repository: Repository) -> list[Release]:
    """Every release, by name and version. Raises ArtifactError for a malformed one."""
    names = {name.split("/")[1] for name in repository.store.list("releases/")}
    return [release for name in sorted(names) for release in _versions(repository, name)]


def resolve(repository: Repository, model: str) -> Release:
    """The release that `model` means: `nano` (latest), `nano@3`, or the first digits (4 or more) of a released record.

    Raises UnknownModel.
    """
    releases = list_releases(repository)
    name, at, number = model.partition("@")
    named = [release for release in releases if release.name == name]
    if named and not at:
        return named[-1]
    if named:
        return _version(named, number)
    found = [release for release in releases if _DIGEST_PREFIX.fullmatch(model) and release.record.startswith(model)]
    if len({release.record for release in found}) > 1:
        raise UnknownModel(f"digest prefix {model!r} fits {_listing(found)}: write more digits")
    if found:
        return found[-1]
    raise UnknownModel(f"no model {model!r} in store {repository.store.url}: {_hint(name, releases)}")


def resolve_record(repository: Repository, model: str) -> str:
    """The record digest that `model` means: whatever `resolve` takes, or the first digits of any record.

    Raises UnknownModel.
    """
    try:
        return resolve(repository, model).record
    except UnknownModel:
        if not _DIGEST_PREFIX.fullmatch(model):
            raise
        names = list(repository.store.list(f"records/{model}"))
        if not names:
            raise
    if len(names) > 1:
        digests = ", ".join(name.removeprefix("records/")[:16] for name in names[:4])
        raise UnknownModel(f"digest prefix {model!r} fits {len(names)} records ({digests}): write more digits")
    return stem(names[0])


def _versions(repository: Repository, name: str) -> list[Release]:
    names = numbered(repository.store, f"releases/{name}/")
    return [_read(name, version, where, repository.store.read(where)) for version, where in names.items()]


def _read(name: str, version: int, where: str, data: bytes) -> Release:
    value = read_json(data, where)
    is_sealed = isinstance(value, dict) and "seal" in value
    fields = check_value(value, where, SEALED_FIELDS if is_sealed else UNSEALED_FIELDS)
    seal = None
    if is_sealed:
        rest = {key: fields[key] for key in SEALED_FIELDS if key != "seal"}
        is_whole = digest(rest) == fields["seal"] and (fields["name"], fields["version"]) == (name, version)
        seal = Seal(fields["content"], fields["provenance"], fields["previous"], is_whole)
    document = hashlib.sha256(data).hexdigest()
    return Release(name, version, fields["record"], fields["metrics"], fields["created"], document, seal)


def _version(named: list[Release], number: str) -> Release:
    for release in named:
        if number == str(release.version):
            return release
    versions = ", ".join(str(release.version) for release in named)
    raise UnknownModel(f"model {named[0].name!r} has no version {number!r}, only {versions}")


def _hint(name: str, releases: list[Release]) -> str:
    names = sorted({release.name for release in releases})
    if not names:
        return "nothing has been released there yet"
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"


def _listing(releases: list[Release]) -> str:
    return ", ".join(f"{release.name}@{release.version} ({release.record[:12]})" for release in releases)
