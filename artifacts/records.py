"""Records: small JSON documents that say how an artifact was made, named by the sha256 of their own bytes."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import PurePosixPath
from typing import Any

from artifacts.canonical import canonical_json, digest

SCHEMA = 1

_SHA256 = re.compile(r"[0-9a-f]{64}")


class ArtifactError(ValueError):
    """An artifact, record or release that is not what it should be.

    The message is one line: what, where, and the cure.
    """


@dataclass(frozen=True)
class FileEntry:
    """One file of an artifact: its path inside the artifact (with `/`), its size in bytes and its sha256 in hex."""

    path: str
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        parts = PurePosixPath(self.path).parts
        if not parts or self.path.startswith("/") or ".." in parts or "/".join(parts) != self.path:
            raise ArtifactError(f"file path {self.path!r} must stay inside its artifact and be written plainly")
        if self.bytes < 0 or not _SHA256.fullmatch(self.sha256):
            raise ArtifactError(f"file {self.path!r} has no valid size and sha256: {self.bytes}, {self.sha256!r}")


@dataclass(frozen=True)
class Fingerprint:
    """The code a stage runs: one hash, and the hash of every first-party module that went into it."""

    fingerprint: str
    modules: Mapping[str, str]


@dataclass(frozen=True)
class Record:
    """How an artifact was made.

    `inputs` are record digests by role; `config` holds what the stage read and nothing else.
    """

    kind: str
    step: str
    name: str
    files: tuple[FileEntry, ...]
    inputs: Mapping[str, str]
    config: Mapping[str, Any]
    code: Fingerprint
    schema: int = SCHEMA

    def to_json(self) -> bytes:
        """Canonical JSON: the bytes that the store holds. Raises CanonicalError for a config without canonical form."""
        fields = {name: getattr(self, name) for name in RECORD_FIELDS}
        code = {name: getattr(self.code, name) for name in CODE_FIELDS}
        return canonical_json(fields | {"files": [asdict(entry) for entry in self.files], "code": code})

    @property
    def digest(self) -> str:
        """The record's name: sha256 of its canonical JSON, in hex."""
        return hashlib.sha256(self.to_json()).hexdigest()

    @property
    def content_digest(self) -> str:
        """What the artifact holds, whoever made it: sha256 of the canonical list of its files."""
        return digest([asdict(entry) for entry in self.files])

    @property
    def total_bytes(self) -> int:
        """The size of all files together."""
        return sum(entry.bytes for entry in self.files)

    @classmethod
    def from_json(cls, data: bytes, where: str = "record") -> Record:
        """Read a record strictly.

        Raises ArtifactError naming `where` for an unknown schema, a missing or an extra field.
        """
        fields = _fields(data, where, RECORD_FIELDS)
        code = check_value(fields["code"], f"{where}: code", CODE_FIELDS)
        files = tuple(FileEntry(**check_value(each, f"{where}: a file", FILE_FIELDS)) for each in fields["files"])
        return cls(**fields | {"files": files, "code": Fingerprint(**code)})


@dataclass(frozen=True)
class Provenance:
    """One making of a record: who, when, where, with which libraries, at what cost.

    Two honest makings differ only here.
    """

    record: str
    git: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Mapping[str, Any] = field(default_factory=dict)
    cost: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA

    def to_json(self) -> bytes:
        """Canonical JSON. Raises CanonicalError naming the value that has none."""
        return canonical_json({name: getattr(self, name) for name in PROVENANCE_FIELDS})

    @classmethod
    def from_json(cls, data: bytes, where: str = "provenance") -> Provenance:
        """Read provenance strictly. Raises ArtifactError."""
        return cls(**_fields(data, where, PROVENANCE_FIELDS))


def key_payload(step: str, code: str, config: Mapping[str, Any], contents: Mapping[str, str]) -> dict[str, Any]:
    """What a cache key is the digest of: stage, code fingerprint, config, and the inputs' content digests by role."""
    return {"schema": SCHEMA, "step": step, "code": code, "config": config, "inputs": contents}


RECORD_FIELDS: Mapping[str, type] = {
    "schema": int,
    "kind": str,
    "step": str,
    "name": str,
    "files": list,
    "inputs": dict,
    "config": dict,
    "code": dict,
}
CODE_FIELDS: Mapping[str, type] = {"fingerprint": str, "modules": dict}
FILE_FIELDS: Mapping[str, type] = {"path": str, "bytes": int, "sha256": str}
PROVENANCE_FIELDS: Mapping[str, type] = {
    "schema": int,
    "record": str,
    "git": dict,
    "environment": dict,
    "metrics": dict,
    "cost": dict,
    "run": dict,
}


def read_json(data: bytes, where: str) -> Any:
    """Parse JSON from the store. Raises ArtifactError naming the object."""
    try:
        return json.loads(data)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ArtifactError(f"{where} is not valid JSON: {error}") from None


def check_fields(data: bytes, where: str, expected: Mapping[str, type]) -> dict[str, Any]:
    """Parse a JSON object with exactly the `expected` fields and types. Raises ArtifactError."""
    return check_value(read_json(data, where), where, expected)


def _fields(data: bytes, where: str, expected: Mapping[str, type]) -> dict[str, Any]:
    value = read_json(data, where)
    if isinstance(value, dict) and value.get("schema", SCHEMA) != SCHEMA:
        found = value["schema"]
        raise ArtifactError(
            f"{where} has schema {found}, this version reads schema {SCHEMA}: use the version that wrote it"
        )
    return check_value(value, where, expected)


def check_value(value: Any, where: str, expected: Mapping[str, type]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ArtifactError(f"{where} must be a JSON object, not {type(value).__name__}")
    _same_names(value, where, expected)
    for name, kind in expected.items():
        if type(value[name]) is not kind:
            raise ArtifactError(f"{where}: {name} must be {kind.__name__}, not {type(value[name]).__name__}")
    return value


def _same_names(value: Mapping[str, Any], where: str, expected: Mapping[str, type]) -> None:
    missing: Sequence[str] = sorted(set(expected) - set(value))
    extra: Sequence[str] = sorted(set(value) - set(expected))
    if missing or extra:
        faults = [f"misses {', '.join(missing)}"] * bool(missing) + [f"has unknown {', '.join(extra)}"] * bool(extra)
        raise ArtifactError(f"{where} {' and '.join(faults)}")


Warn = Callable[[str], None]


def silent(message: str) -> None:
    """The `Warn` and `report` of callers that do not listen."""
