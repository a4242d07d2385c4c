"""What differs between two records and everything below them: walked down both trees by role, the same left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.differences import Difference, differences
from artifacts.lineage import cache_key_of
from artifacts.records import Record
from artifacts.repository import Repository


@dataclass(frozen=True)
class RecordDifference:
    """Two records that play the same role, and differ. `path` is the chain of roles that leads to them from the top.

    `code` names modules and `files` paths; `inputs` are roles that one side lacks, and `changed` the roles whose
    records differ, each compared in an entry of its own. `same_content`: the bytes are equal, so nothing above was
    remade because of this. `same_question`: the cache keys are equal, so only the environment can have made other
    bytes.
    """

    path: str
    step: str
    old: str
    new: str
    same_content: bool
    same_question: bool
    made_as: tuple[Difference, ...]
    config: tuple[Difference, ...]
    code: tuple[Difference, ...]
    files: tuple[Difference, ...]
    inputs: tuple[Difference, ...]
    environment: tuple[Difference, ...]
    changed: tuple[str, ...]

    @property
    def follows(self) -> bool:
        """Whether nothing but its inputs' records sets the two makings apart."""
        return not (self.made_as or self.config or self.code or self.inputs)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        parts = {name: [each.to_json() for each in getattr(self, name)] for name in PARTS}
        whole = {name: getattr(self, name) for name in ("path", "step", "old", "new", *CLAIMS)}
        return whole | parts | {"changed": list(self.changed)}


CLAIMS = ("same_content", "same_question", "follows")
PARTS = ("made_as", "config", "code", "inputs", "files", "environment")


def compare(repository: Repository, old: str, new: str) -> list[RecordDifference]:
    """Every pair of records that differs, from the top down, each pair once; none when the two records are the same.

    Raises ArtifactError for a record or a provenance that is missing or altered.
    """
    found: list[RecordDifference] = []
    seen: set[tuple[str, str]] = set()
    waiting = [("", old, new)]
    while waiting:
        path, left, right = waiting.pop(0)
        if left == right or (left, right) in seen:
            continue
        seen.add((left, right))
        sides = repository.read_record(left), repository.read_record(right)
        found.append(_pair(repository, path, *sides))
        roles = found[-1].changed
        waiting[:0] = [
            (f"{path} > {role}" if path else role, sides[0].inputs[role], sides[1].inputs[role]) for role in roles
        ]
    return found


def _pair(repository: Repository, path: str, old: Record, new: Record) -> RecordDifference:
    shared = sorted({*old.inputs} & {*new.inputs})
    lacking = {
        side: {role: digest for role, digest in record.inputs.items() if role not in shared}
        for side, record in (("old", old), ("new", new))
    }
    digests = old.digest, new.digest
    made_as = ({"kind": each.kind, "name": each.name, "step": each.step} for each in (old, new))
    keys = (cache_key_of(repository, each) for each in (old, new))
    return RecordDifference(
        path=path,
        step=new.step,
        old=digests[0],
        new=digests[1],
        same_content=old.content_digest == new.content_digest,
        same_question=next(keys) == next(keys),
        made_as=differences(*made_as),
        config=differences(old.config, new.config),
        code=differences(old.code.modules, new.code.modules),
        files=differences(_files(old), _files(new)),
        inputs=differences(lacking["old"], lacking["new"]),
        environment=differences(*(_environment(repository, digest) for digest in digests)),
        changed=tuple(role for role in shared if old.inputs[role] != new.inputs[role]),
    )


def _files(record: Record) -> dict[str, str]:
    """A value a file, so that a changed file is one difference and not one of its size and one of its hash."""
    return {entry.path: f"{entry.sha256[:12]}, {entry.bytes:,} bytes" for entry in record.files}


def _environment(repository: Repository, record_digest: str) -> Mapping[str, Any]:
    makings = repository.provenances(record_digest)
    return makings[-1].environment if makings else {}
