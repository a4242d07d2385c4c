"""Pins: records that somebody wants to keep although nothing was released from them (`pins/<record digest>.json`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.canonical import canonical_json
from artifacts.records import check_fields
from artifacts.repository import Repository

PINS = "pins/"
PIN_FIELDS: Mapping[str, type] = {"record": str, "asked": str, "created": str}


@dataclass(frozen=True)
class Pin:
    """A pinned record, how it was asked for (`nano@3`, a prefix of its digest), and when (ISO 8601)."""

    record: str
    asked: str
    created: str


def pin(repository: Repository, record_digest: str, asked: str, created: str) -> bool:
    """Pin a record; False when it was pinned before. Raises ArtifactError for a record that does not exist."""
    repository.read_record(record_digest)
    fields = {"record": record_digest, "asked": asked, "created": created}
    return repository.store.put_if_absent(_name(record_digest), canonical_json(fields))


def unpin(repository: Repository, record_digest: str) -> bool:
    """Take a pin away; False when there was none."""
    is_there = repository.store.size(_name(record_digest)) is not None
    repository.store.delete(_name(record_digest))
    return is_there


def list_pins(repository: Repository) -> list[Pin]:
    """Every pin. Raises ArtifactError for a malformed one."""
    store = repository.store
    return [Pin(**check_fields(store.read(name), name, PIN_FIELDS)) for name in list(store.list(PINS))]


def _name(record_digest: str) -> str:
    return f"{PINS}{record_digest}.json"
