"""The making of a record as an in-toto statement with SLSA provenance v1.

A build is what SLSA attests, and making an artifact is one: config and stage are its parameters, the records below it
its resolved dependencies. https://slsa.dev/spec/v1.0/provenance, https://in-toto.io/Statement/v1
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from artifacts.export.lineage import ExportError, Lineage, Part
from artifacts.signing import STATEMENT_TYPE

PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
RECORD_URI = "urn:nanocode:record"


def in_toto(lineage: Lineage) -> dict[str, Any]:
    """The statement: subject are the files of the record on top, dependencies all that is below it, direct ones first.

    Checked by the types of `in-toto-attestation` where that is installed. Raises ExportError when they refuse it.
    """
    top = lineage.top
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": entry.path, "digest": {"sha256": entry.sha256}} for entry in top.record.files],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"buildDefinition": _definition(lineage), "runDetails": _run(top)},
    }
    _check(statement)
    return statement


def _definition(lineage: Lineage) -> dict[str, Any]:
    record = lineage.top.record
    made = {"step": record.step, "kind": record.kind, "name": record.name, "record": lineage.top.digest}
    release = lineage.release
    if release is not None:
        made["release"] = lineage.title
    return {
        "buildType": f"{RECORD_URI}:{record.schema}",
        "externalParameters": {"config": record.config},
        "internalParameters": made,
        "resolvedDependencies": [*_code(lineage.top), *_dependencies(lineage)],
    }


def _code(part: Part) -> list[dict[str, Any]]:
    """The commit that was checked out, and the fingerprint of the modules that ran."""
    modules = dict(part.record.code.modules)
    found: list[dict[str, Any]] = [
        {"name": "code", "digest": {"sha256": part.record.code.fingerprint}, "annotations": {"modules": modules}}
    ]
    commit = part.made.git.get("commit") if part.made is not None else None
    if part.made is not None and commit:
        dirty = bool(part.made.git.get("dirty"))
        found.append({"name": "git", "digest": {"gitCommit": commit}, "annotations": {"dirty": dirty}})
    return found


def _dependencies(lineage: Lineage) -> list[dict[str, Any]]:
    roles = {digest: role for role, digest in sorted(lineage.top.record.inputs.items(), reverse=True)}
    direct = [part for digest, part in lineage.parts.items() if digest in roles]
    others = [part for digest, part in lineage.parts.items() if digest not in roles and part is not lineage.top]
    return [_dependency(part, roles.get(part.digest)) for part in (*direct, *others)]


def _dependency(part: Part, role: str | None) -> dict[str, Any]:
    record = part.record
    annotations: dict[str, Any] = {
        "step": record.step,
        "kind": record.kind,
        "artifact": record.name,
        "content": record.content_digest,
        "bytes": record.total_bytes,
        "direct": role is not None,
    }
    name = record.name if role is None else role
    uri = f"{RECORD_URI}:{part.digest}"
    return {"name": name, "uri": uri, "digest": {"sha256": part.digest}, "annotations": annotations}


def _run(top: Part) -> dict[str, Any]:
    made = top.made
    if made is None:
        return {"builder": {"id": "urn:nanocode:unknown"}}
    versions = {name: _text(value) for name, value in made.environment.items() if value is not None}
    run: Mapping[str, Any] = made.run
    metadata = {
        "invocationId": f"{run.get('flow', '')}/{run.get('run_id', '')}",
        "startedOn": run.get("started"),
        "finishedOn": run.get("finished"),
    }
    byproducts = [
        {"name": "metrics", "mediaType": "application/json", "annotations": {"metrics": made.metrics}},
        {"name": "cost", "mediaType": "application/json", "annotations": {"cost": made.cost}},
    ]
    return {
        "builder": {"id": "urn:nanocode:pipeline", "version": versions},
        "metadata": {name: value for name, value in metadata.items() if value},
        "byproducts": byproducts,
    }


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _check(statement: Mapping[str, Any]) -> None:
    try:
        from google.protobuf import json_format
        from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
        from in_toto_attestation.v1 import statement as types
        from in_toto_attestation.v1 import statement_pb2
    except ImportError:
        return  # the types come with the extra `signing`; the statement is the same without them
    try:
        parsed = json_format.ParseDict(dict(statement), statement_pb2.Statement())
        types.Statement.copy_from_pb(parsed).validate()
        json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
    except (json_format.ParseError, ValueError) as error:
        raise ExportError(f"the in-toto statement is not valid: {' '.join(str(error).split())}") from None
