"""Reuse: the record of a stage is accepted although the code that made it has been edited since.

A record is only ever answered to by keys of the code that made it, so nothing is committed under the new key. What is
kept is a note beside the record: who accepted it, in place of what.

    reused/<record digest>/<new key>.json

Stages below it find their keys by its content, as always. Whatever is made from it while the code is the one that it
was accepted for says so in its provenance (`reused`), in whichever process, run or machine that happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts.canonical import canonical_json
from artifacts.explain import Explanation, KeyIndex, explain
from artifacts.fingerprint import FIRST_PARTY, code_fingerprint
from artifacts.lineage import reach
from artifacts.records import ArtifactError, Fingerprint, Record, check_fields
from artifacts.repository import Key, Repository

NOTES = "reused/"


@dataclass(frozen=True)
class Reuse:
    """A record that was accepted: made under `key`, in place of `instead_of`, which nothing was committed under.

    `code` is the fingerprint of `module` that it was accepted for, `modules` what had been edited since it was made.
    """

    record: str
    step: str
    name: str
    module: str
    key: str
    instead_of: str
    code: str
    modules: tuple[str, ...]
    run: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self) | {"modules": list(self.modules)}


NOTE_FIELDS: Mapping[str, type] = dict.fromkeys(Reuse.__dataclass_fields__, str) | {"modules": list, "run": dict}


@dataclass(frozen=True)
class Acceptable:
    """What could be reused: a committed key, its record, and how it differs from what is asked for: in code alone."""

    key: Key
    record: Record
    explanation: Explanation


def find_reusable(
    repository: Repository, payload: Mapping[str, Any], name: str, code: Fingerprint, index: KeyIndex | None = None
) -> Acceptable:
    """The whole record nearest to a key's payload that differs from it in code alone.

    Raises ArtifactError when there is none, with what else differs: whoever asks for reuse does not want to pay.
    """
    index = index or KeyIndex(repository)
    key = index.differing_in_code(payload, name)
    record = repository.find(key.key) if key is not None else None
    if key is not None and record is not None:
        return Acceptable(key, record, explain(repository, payload, code, key))
    step = payload["step"]
    others = explain(repository, payload, code, index.nearest(payload, name))
    told = "; ".join(each for each in others.lines() if not each.startswith("code ")) or "its files are not whole"
    raise ArtifactError(
        f"{step}: no record of {name} differs in code alone ({told}): to make it, do not ask for its reuse"
    )


def accept(
    repository: Repository,
    key: str,
    payload: Mapping[str, Any],
    name: str,
    module: str,
    root: Path,
    run: Mapping[str, Any],
) -> Reuse:
    """Take the nearest record that differs in code alone for the answer to `key`, and keep a note of that.

    `run` says who asks. Of several equal acceptances the first one's note is kept. Raises ArtifactError when nothing
    can be reused.
    """
    code = code_fingerprint(module, FIRST_PARTY, root)
    found = find_reusable(repository, payload, name, code)
    repository.use(found.key.key)
    edited = tuple(each.path for each in found.explanation.modules)
    record, made_under = found.record, found.key.key
    reuse = Reuse(record.digest, record.step, record.name, module, made_under, key, code.fingerprint, edited, run)
    repository.store.put_if_absent(f"{NOTES}{reuse.record}/{key}.json", canonical_json(reuse.to_json()))
    return reuse


def notes(repository: Repository) -> list[Reuse]:
    """Every acceptance there is. Raises ArtifactError for a malformed one."""
    found = []
    for name in repository.store.list(NOTES):
        fields = check_fields(repository.store.read(name), name, NOTE_FIELDS)
        found.append(Reuse(**fields | {"modules": tuple(fields["modules"])}))
    return found


def reused(repository: Repository, records: Iterable[str], root: Path) -> list[dict[str, Any]]:
    """What of the records, and of all that they were made from, stands in for something that today's code would make.

    Each as plain data: the record, the key it was made under, and the code that it was accepted for. An acceptance for
    other code than the one under `root` does not count: that code may well make the record as it is.
    """
    accepted = [each for each in notes(repository) if each.code == _fingerprint(each.module, root)]
    if not accepted:
        return []
    below = {digest for record in records for digest in reach(repository, record).records}
    kept = ("record", "step", "name", "key", "code", "modules")
    return [{name: each.to_json()[name] for name in kept} for each in accepted if each.record in below]


def _fingerprint(module: str, root: Path) -> str | None:
    try:
        return code_fingerprint(module, FIRST_PARTY, root).fingerprint
    except ArtifactError:
        return None
