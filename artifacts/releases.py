"""Releases: names for records, numbered from 1 up, append-only (`releases/<name>/<version>.json`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.canonical import canonical_json, plain
from artifacts.records import ArtifactError, check_fields
from artifacts.repository import Repository, numbered

RELEASE_FIELDS: Mapping[str, type] = {"record": str, "metrics": dict, "created": str}

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_DIGEST_PREFIX = re.compile(r"[0-9a-f]{4,64}")


class UnknownModel(ArtifactError):
    """A model that the store does not know, or a prefix that fits more than one. The message names what there is."""


@dataclass(frozen=True)
class Release:
    """A named model version: the record it stands for, the metrics it was released with, and when (ISO 8601)."""

    name: str
    version: int
    record: str
    metrics: Mapping[str, Any]
    created: str


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
    repository.read_record(record_digest)
    fields = {"record": record_digest, "metrics": plain(metrics, f"metrics of {name}"), "created": created}
    while True:
        versions = _versions(repository, name)
        if versions and versions[-1].record == record_digest:
            return versions[-1].version
        version = versions[-1].version + 1 if versions else 1
        if repository.store.put_if_absent(f"releases/{name}/{version}.json", canonical_json(fields)):
            return version


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
    return names[0].removeprefix("records/").removesuffix(".json")


def _versions(repository: Repository, name: str) -> list[Release]:
    found = []
    for version, where in numbered(repository.store, f"releases/{name}/").items():
        fields = check_fields(repository.store.read(where), where, RELEASE_FIELDS)
        found.append(Release(name, version, fields["record"], fields["metrics"], fields["created"]))
    return found


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
