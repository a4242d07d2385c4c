"""What a record was made of: every record reachable over `inputs`, and what is wrong with the records themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.records import ArtifactError, FileEntry, Record
from artifacts.repository import Repository, record_name


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
