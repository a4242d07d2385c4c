"""The lineage as a CycloneDX 1.6 machine-learning bill of materials, in JSON.

`cyclonedx-python-lib` has no classes for model cards and data, so the document is written here and the library's
validator checks the whole of it against the schema. https://cyclonedx.org/docs/1.6/json/
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from artifacts.export.lineage import ExportError, Lineage, Part

_SERIALS = uuid.uuid5(uuid.NAMESPACE_URL, "urn:nanocode:bom")
NOT_LIBRARIES = ("python", "platform", "devices")
_ALGORITHM = "SHA-256"


@dataclass(frozen=True)
class Figure:
    """One measurement: what, of which part (`slice`), its value, and where they are known its interval and sample."""

    name: str
    slice: str
    value: float
    low: float | None = None
    high: float | None = None
    n: int | None = None


@dataclass(frozen=True)
class Meaning:
    """What the records do not say by themselves.

    `is_model` and `is_data` sort parts (the rest are plain data components), `licences` gives a part's licences,
    `facts` what else is worth saying of it. The others describe the model on top.
    """

    is_model: Callable[[Part], bool]
    is_data: Callable[[Part], bool]
    licences: Callable[[Part], Sequence[str]]
    facts: Callable[[Part], Mapping[str, str]]
    description: str
    family: str
    architecture: str
    task: str
    learning: str
    figures: Sequence[Figure] = ()
    limitations: Sequence[str] = ()
    own_licence: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)


def cyclonedx(lineage: Lineage, meaning: Meaning) -> dict[str, Any]:
    """The bill of materials: model, models and data below it, its libraries, and what depends on what.

    The same lineage always gives the same document. Raises ExportError without the library, or when the schema refuses
    the document.
    """
    others = [part for part in lineage.parts.values() if part is not lineage.top]
    libraries = list(_libraries(lineage))
    top = _component(lineage.top, meaning) | _model(lineage, meaning)
    made = lineage.top.made
    metadata: dict[str, Any] = {"component": top}
    if made is not None and made.run.get("finished"):
        metadata["timestamp"] = made.run["finished"]
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_SERIALS, lineage.title + lineage.top.digest)}",
        "version": 1,
        "metadata": metadata,
        "components": [*(_component(part, meaning) for part in others), *libraries],
        "dependencies": list(_dependencies(lineage, libraries)),
    }
    _check(document)
    return document


def _component(part: Part, meaning: Meaning) -> dict[str, Any]:
    record = part.record
    facts = {
        "record": part.digest,
        "step": record.step,
        "kind": record.kind,
        "code": record.code.fingerprint,
        "bytes": str(record.total_bytes),
        **{f"file:{entry.path}": entry.sha256 for entry in record.files},
        **meaning.facts(part),
    }
    found: dict[str, Any] = {
        "type": "machine-learning-model" if meaning.is_model(part) else "data",
        "bom-ref": part.digest,
        "name": record.name,
        "version": part.digest[:12],
        "hashes": [{"alg": _ALGORITHM, "content": record.content_digest}],
        "properties": _properties(facts),
    }
    licences = [_licence(name) for name in meaning.licences(part)]
    if licences:
        found["licenses"] = licences
    if not meaning.is_model(part):
        kind = "dataset" if meaning.is_data(part) else "other"
        found["data"] = [{"type": kind, "name": record.name, "contents": {"properties": _properties(facts)}}]
    return found


def _model(lineage: Lineage, meaning: Meaning) -> dict[str, Any]:
    """What the component on top is beyond a part: released under a name, with a model card."""
    release = lineage.release
    found: dict[str, Any] = {
        "type": "machine-learning-model",
        "description": meaning.description,
        "modelCard": _model_card(lineage, meaning),
    }
    if release is not None:
        found |= {"name": release.name, "version": str(release.version)}
    if meaning.own_licence is not None:
        found["licenses"] = [_licence(meaning.own_licence)]
    return found


def _model_card(lineage: Lineage, meaning: Meaning) -> dict[str, Any]:
    data = [{"ref": part.digest} for part in lineage.parts.values() if meaning.is_data(part)]
    return {
        "modelParameters": {
            "approach": {"type": meaning.learning},
            "task": meaning.task,
            "architectureFamily": meaning.family,
            "modelArchitecture": meaning.architecture,
            "datasets": data,
        },
        "quantitativeAnalysis": {"performanceMetrics": [_metric(figure) for figure in meaning.figures]},
        "considerations": {"technicalLimitations": list(meaning.limitations)},
        "properties": _properties({**_flat(lineage.top.record.config), **meaning.extra}),
    }


def _metric(figure: Figure) -> dict[str, Any]:
    sample = "" if figure.n is None else f", n = {figure.n}"
    found: dict[str, Any] = {"type": figure.name, "value": repr(figure.value), "slice": f"{figure.slice}{sample}"}
    if figure.low is not None and figure.high is not None:
        found["confidenceInterval"] = {"lowerBound": repr(figure.low), "upperBound": repr(figure.high)}
    return found


def _libraries(lineage: Lineage) -> Iterator[dict[str, Any]]:
    """Every version of every library that any part was made with."""
    versions = {
        (name.replace("_", "-"), str(version))
        for part in lineage.parts.values()
        if part.made is not None
        for name, version in part.made.environment.items()
        if version is not None and name not in NOT_LIBRARIES
    }
    for name, version in sorted(versions):
        purl = f"pkg:pypi/{name}@{version}"
        yield {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}


def _dependencies(lineage: Lineage, libraries: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    used = [each["bom-ref"] for each in libraries]
    for part in lineage.parts.values():
        below = sorted(set(part.record.inputs.values()))
        yield {"ref": part.digest, "dependsOn": below + (used if part is lineage.top else [])}


def _properties(facts: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": f"nanocode:{name}", "value": value} for name, value in facts.items()]


def _flat(value: Any, path: str = "config") -> dict[str, str]:
    if isinstance(value, Mapping) and value:
        return {
            name: text for key, each in sorted(value.items()) for name, text in _flat(each, f"{path}.{key}").items()
        }
    return {path: value if isinstance(value, str) else json.dumps(value)}


def _licence(name: str) -> dict[str, Any]:
    """By SPDX id where it is one; else by the name that the source gives it."""
    return {"license": {"id": name} if _spdx().is_supported_id(name) else {"name": name}}


def _spdx() -> Any:
    try:
        from cyclonedx import spdx
    except ImportError:
        raise ExportError("a CycloneDX BOM needs a library that is not here: pip install 'nanocode[lineage]'") from None
    return spdx


def _check(document: Mapping[str, Any]) -> None:
    _spdx()
    from cyclonedx.exception import MissingOptionalDependencyException
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    try:
        fault = JsonStrictValidator(SchemaVersion.V1_6).validate_str(json.dumps(document))
    except MissingOptionalDependencyException:
        raise ExportError("a CycloneDX BOM cannot be checked here: pip install 'nanocode[lineage]'") from None
    if fault is not None:
        raise ExportError(f"the CycloneDX document does not fit its schema: {' '.join(str(fault).split())[:400]}")
