"""What every export starts from: a record, all that it was made from, and how each was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.reach import reach
from artifacts.records import ArtifactError, Provenance, Record
from artifacts.releases import Release
from artifacts.repository import Repository


class ExportError(ArtifactError):
    """An export that cannot be written: a library that is missing, or a document its own schema refuses."""


@dataclass(frozen=True)
class Part:
    """One record and its makings, oldest first."""

    digest: str
    record: Record
    makings: tuple[Provenance, ...]

    @property
    def made(self) -> Provenance | None:
        """The latest making."""
        return self.makings[-1] if self.makings else None

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Of the latest making."""
        return self.made.metrics if self.made is not None else {}


@dataclass(frozen=True)
class Lineage:
    """A record (`top`) and all that it was made from, itself first and each once; `release` when it is one."""

    top: Part
    parts: Mapping[str, Part]
    release: Release | None

    @property
    def title(self) -> str:
        """The release (`nano@3`), else the record's name."""
        release = self.release
        return self.top.record.name if release is None else f"{release.name}@{release.version}"


def load(repository: Repository, record_digest: str, release: Release | None = None) -> Lineage:
    """Read a record and all below it.

    Raises ArtifactError for anything that is missing or altered: an export that leaves something out would be believed.
    """
    found = reach(repository, record_digest)
    if found.faults:
        raise ArtifactError(found.faults[0].message)
    parts = {
        digest: Part(digest, record, tuple(repository.provenances(digest))) for digest, record in found.records.items()
    }
    return Lineage(parts[record_digest], parts, release)
