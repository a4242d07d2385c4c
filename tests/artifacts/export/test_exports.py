"""Exports: nothing of the lineage is left out, names cannot break the format, and the formats' own checks pass."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace

import pytest

from artifacts.build import Build, Stage
from artifacts.export.cyclonedx import Figure, Meaning, cyclonedx
from artifacts.export.in_toto import in_toto
from artifacts.export.lineage import ExportError, Lineage, load
from artifacts.export.mermaid import mermaid
from artifacts.export.openlineage import openlineage, run_id
from artifacts.records import ArtifactError
from artifacts.releases import publish, resolve
from artifacts.repository import record_name

HOSTILE = 'a"]; <script> `x` #1 & more\nend'
MEANING = Meaning(
    is_model=lambda part: part.record.kind == "model",
    is_data=lambda part: part.record.kind == "tokens",
    licences=lambda part: ["MIT", "My own licence"] if part.record.kind == "tokens" else [],
    facts=lambda part: {"seen": "yes"},
    description="A model.",
    family="transformer network",
    architecture="GPT",
    task="text generation",
    learning="self-supervised",
    figures=[Figure("success", "held out", 0.5, 0.4, 0.6, 100), Figure("loss", "all", 1.5)],
    limitations=["small"],
)


@pytest.fixture
def lineage(workshop) -> Lineage:
    """Data, a model, and a report of hostile name over both; released."""
    data = workshop.data()
    inputs = {"model": workshop.train(data).record_digest, 'x"|y': data.record_digest}

    def produce(making: Build) -> None:
        (making.output / "report").write_text("fine")

    report = workshop.build(Stage("evaluate", "report", HOSTILE, "steps.train", {"k": 1}, inputs), produce)
    publish(workshop.repository, "nano", report.record_digest, {}, "2026-01-02T03:04:05Z")
    return load(workshop.repository, report.record_digest, resolve(workshop.repository, "nano"))


def edges(lineage: Lineage) -> int:
    return sum(len(part.record.inputs) for part in lineage.parts.values())


def test_a_lineage_with_a_hole_is_not_exported(workshop):
    data = workshop.data()
    model = workshop.train(data)
    workshop.object(record_name(data.record_digest)).unlink()
    with pytest.raises(ArtifactError, match="input 'tokens'"):
        load(workshop.repository, model.record_digest)


def test_mermaid_shows_every_record_once_and_every_role_and_no_name_breaks_it(lineage):
    first, *lines = mermaid(lineage).splitlines()
    label = r'"[^"<>`&]*(?:&|#\w+;|<br/>|[^"<>`&])*"'
    nodes = [line for line in lines if re.fullmatch(rf"    r\d+\[{label}\]", line)]
    arrows = [line for line in lines if re.fullmatch(rf"    r\d+ -->\|{label}\| r\d+", line)]
    assert first == "flowchart TD"
    assert (len(nodes), len(arrows)) == (len(lineage.parts), edges(lineage))
    assert len(lines) == len(nodes) + len(arrows)
    for digest in lineage.parts:
        assert sum(digest[:12] in line for line in nodes) == 1
    assert "#quot;" in mermaid(lineage)
    assert "<script>" not in mermaid(lineage)


def test_in_toto_names_the_files_the_config_the_code_and_all_that_is_below(lineage):
    statement = in_toto(lineage)
    definition = statement["predicate"]["buildDefinition"]
    (entry,) = lineage.top.record.files
    assert statement["subject"] == [{"name": "report", "digest": {"sha256": entry.sha256}}]
    assert definition["externalParameters"] == {"config": {"k": 1}}
    records = {
        each["digest"]["sha256"]: each
        for each in definition["resolvedDependencies"]
        if each.get("uri", "").startswith("urn:")
    }
    assert set(records) == set(lineage.parts) - {lineage.top.digest}
    assert all(each["annotations"]["direct"] for each in records.values())
    assert definition["resolvedDependencies"][0]["digest"] == {"sha256": lineage.top.record.code.fingerprint}
    metadata = statement["predicate"]["runDetails"]["metadata"]
    assert metadata["invocationId"] == "TestFlow/7"
    assert metadata["startedOn"] <= metadata["finishedOn"]


def test_in_toto_is_accepted_by_the_types_of_the_attestation_project(lineage):
    statement_pb2 = pytest.importorskip("in_toto_attestation.v1.statement_pb2")
    from google.protobuf import json_format
    from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
    from in_toto_attestation.v1 import statement as types

    statement = in_toto(lineage)
    parsed = json_format.Parse(json.dumps(statement), statement_pb2.Statement())
    types.Statement.copy_from_pb(parsed).validate()
    provenance = json_format.ParseDict(statement["predicate"], provenance_pb2.Provenance())
    assert len(provenance.build_definition.resolved_dependencies) >= len(lineage.parts)
    empty = replace(lineage, top=replace(lineage.top, record=replace(lineage.top.record, files=())))
    with pytest.raises(ExportError, match="At least one subject"):
        in_toto(empty)


def test_openlineage_has_a_start_and_an_end_for_each_making_and_the_same_ids_every_time(lineage, workshop):
    pytest.importorskip("openlineage.client")
    (data,) = [part for part in lineage.parts.values() if part.record.step == "data"]
    workshop.repository.add_provenance(data.made)
    again = load(workshop.repository, lineage.top.digest)
    events = [json.loads(line) for line in openlineage(again, "nanocode").splitlines()]
    runs: dict[str, list[str]] = {}
    for event in events:
        runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
    makings = [(part.digest, n) for part in again.parts.values() for n in range(1, len(part.makings) + 1)]
    assert len(makings) == len(lineage.parts) + 1
    assert runs == {run_id(*making): ["START", "COMPLETE"] for making in makings}
    assert [event["eventTime"] for event in events] == sorted(event["eventTime"] for event in events)
    assert openlineage(again, "nanocode") == openlineage(again, "nanocode")
    assert uuid.UUID(run_id(data.digest, 1)).version == 5


def test_openlineage_datasets_are_versions_and_link_one_run_to_the_next(lineage):
    pytest.importorskip("openlineage.client")
    text = openlineage(lineage, "space", lambda part: 7 if part.record.kind == "model" else None)
    ends = [event for event in map(json.loads, text.splitlines()) if event["eventType"] == "COMPLETE"]
    version = {}
    for event in ends:
        (output,) = event["outputs"]
        assert output["namespace"] == "space"
        version[output["name"]] = output["facets"]["version"]["datasetVersion"]
    assert set(version.values()) == set(lineage.parts)
    read = [each for event in ends for each in event["inputs"]]
    assert len(read) == edges(lineage)
    assert all(version[each["name"]] == each["facets"]["version"]["datasetVersion"] for each in read)
    statistics = {event["job"]["name"]: event["outputs"][0]["outputFacets"]["outputStatistics"] for event in ends}
    assert statistics["train"]["rowCount"] == 7
    assert (statistics["data"]["fileCount"], statistics["data"]["size"]) == (2, len("some text{}"))
    assert "rowCount" not in statistics["data"]


def test_cyclonedx_fits_its_schema_and_every_reference_leads_somewhere(lineage):
    pytest.importorskip("cyclonedx")
    bom = cyclonedx(lineage, MEANING)
    top = bom["metadata"]["component"]
    assert (top["type"], top["name"], top["version"]) == ("machine-learning-model", "nano", "1")
    parts = [top, *bom["components"]]
    references = [each["bom-ref"] for each in parts]
    assert len(references) == len(set(references))
    assert set(lineage.parts) <= set(references)
    for dependency in bom["dependencies"]:
        assert {dependency["ref"], *dependency["dependsOn"]} <= set(references)
    (data,) = [each for each in parts if "licenses" in each]
    assert data["licenses"] == [{"license": {"id": "MIT"}}, {"license": {"name": "My own licence"}}]
    assert top["modelCard"]["modelParameters"]["datasets"] == [{"ref": data["bom-ref"]}]
    assert any(each["type"] == "library" and each["name"] == "numpy" for each in parts)


def test_cyclonedx_figures_keep_their_intervals(lineage):
    pytest.importorskip("cyclonedx")
    success, loss = cyclonedx(lineage, MEANING)["metadata"]["component"]["modelCard"]["quantitativeAnalysis"][
        "performanceMetrics"
    ]
    assert success["confidenceInterval"] == {"lowerBound": "0.4", "upperBound": "0.6"}
    assert success["slice"] == "held out, n = 100"
    assert "confidenceInterval" not in loss


def test_cyclonedx_is_the_same_every_time_and_refused_when_the_schema_refuses_it(lineage):
    pytest.importorskip("cyclonedx")
    assert cyclonedx(lineage, MEANING) == cyclonedx(lineage, MEANING)
    with pytest.raises(ExportError, match="does not fit its schema"):
        cyclonedx(lineage, replace(MEANING, learning="magic"))
