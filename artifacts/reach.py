"""What a record was made of: every record reachable over `inputs`, and what is wrong with the records themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.records import ArtifactError, FileEntry, Record
from artifacts.repository import Repository, parallel, record_name


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
        """Every distinct blob, with the first file that it is: `artifact: path`."""
        found: dict[tuple[str, int], tuple[FileEntry, str]] = {}
        for record in self.records.values():
            for entry in record.files:
                found.setdefault((entry.sha256, entry.bytes), (entry, f"{record.name}: {entry.path}"))
        return dict(found.values())


def reach(repository: Repository, record_digest: str) -> Reach:
    """Every record reachable from one, by digest; records that are missing or altered become faults.

    From the top down, a level at a time; the records of a level are read together.
    """
    records: dict[str, Record] = {}
    faults: list[Fault] = []
    level = {record_digest: ""}  # digest -> who asks for it, as the start of a sentence
    seen: set[str] = set()

    def look(item: tuple[str, str]) -> Record | Fault:
        return _look(repository, *item)

    while level:
        seen |= level.keys()
        below: dict[str, str] = {}
        for digest, found in zip(level, parallel(look, level.items()), strict=True):
            if isinstance(found, Fault):
                faults.append(found)
                continue
            records[digest] = found
            for role, each in sorted(found.inputs.items()):
                if each not in seen:
                    below.setdefault(each, f"input {role!r} of {found.step}: ")
        level = below
    return Reach(records, tuple(faults))


def _look(repository: Repository, digest: str, asked_by: str) -> Record | Fault:
    try:
        return repository.read_record(digest)
    except ArtifactError as error:
        kind = "missing-record" if repository.store.size(record_name(digest)) is None else "altered-record"
        return Fault(kind, record_name(digest), f"{asked_by}{error}")
