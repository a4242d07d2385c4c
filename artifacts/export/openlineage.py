"""The lineage as OpenLineage run events, one JSON document a line: a START and a COMPLETE for each making of a record.

Jobs are stages, datasets are artifacts: named by the artifact's name, their version is the record's digest. Run ids
follow from the provenance, so exporting twice names the same runs. The events are built from the types of
`openlineage-python`, which check them. https://openlineage.io/spec/2-0-2/OpenLineage.json
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from artifacts.export.lineage import ExportError, Lineage, Part
from artifacts.records import Provenance

PRODUCER = "urn:nanocode:lineage"
_RUNS = uuid.uuid5(uuid.NAMESPACE_URL, PRODUCER)

Rows = Callable[[Part], int | None]


def run_id(record_digest: str, number: int) -> str:
    """The id of the `number`-th making of a record, counted from 1."""
    return str(uuid.uuid5(_RUNS, f"{record_digest}/{number}"))


def openlineage(lineage: Lineage, namespace: str, rows: Rows = lambda part: None) -> str:
    """Events in the order of their times, one a line. `rows` says how many rows an artifact has, where that is known.

    Records without provenance have no run, and appear as datasets alone. Raises ExportError without the library.
    """
    try:
        import openlineage.client  # noqa: F401
    except ImportError:
        raise ExportError(
            "OpenLineage events need a library that is not here: pip install 'nanocode[lineage]'"
        ) from None
    events: list[tuple[str, int, str]] = []
    for part in reversed(list(lineage.parts.values())):
        for number, made in enumerate(part.makings, start=1):
            events.extend(_pair(lineage, part, number, made, namespace, rows))
    return "".join(f"{line}\n" for _, _, line in sorted(events, key=lambda event: event[:2]))


def _pair(
    lineage: Lineage, part: Part, number: int, made: Provenance, namespace: str, rows: Rows
) -> Iterator[tuple[str, int, str]]:
    """(time, whether it is an end, JSON) of both events: of equal times, a start comes first."""
    from openlineage.client import event_v2 as event
    from openlineage.client.serde import Serde

    started, finished = str(made.run.get("started", "")), str(made.run.get("finished", ""))
    run = event.Run(runId=run_id(part.digest, number), facets=_run_facets(made))
    job = event.Job(namespace=namespace, name=part.record.step, facets=_job_facets(part, made))
    inputs = [
        event.InputDataset(namespace=namespace, name=below.record.name, facets=_dataset_facets(below))
        for below in (lineage.parts[each] for _, each in sorted(part.record.inputs.items()))
    ]
    outputs = [
        event.OutputDataset(
            namespace=namespace,
            name=part.record.name,
            facets=_dataset_facets(part),
            outputFacets=_output_facets(part, rows),
        )
    ]
    for order, (time, kind) in enumerate(((started, event.RunState.START), (finished, event.RunState.COMPLETE))):
        made_outputs = outputs if kind is event.RunState.COMPLETE else []
        try:
            one = event.RunEvent(
                eventTime=time, eventType=kind, run=run, job=job, inputs=inputs, outputs=made_outputs, producer=PRODUCER
            )
        except ValueError as error:
            raise ExportError(f"no OpenLineage event of {part.record.step} {part.digest[:12]}: {error}") from None
        yield time, order, Serde.to_json(one)


def _run_facets(made: Provenance) -> dict[str, Any]:
    from openlineage.client.facet_v2 import processing_engine_run, tags_run

    told: Mapping[str, Mapping[str, Any]] = {"environment": made.environment, "cost": made.cost}
    tags = [
        tags_run.TagsRunFacetFields(key=key, value=_text(value), source=source)
        for source, values in told.items()
        for key, value in sorted(values.items())
        if value is not None
    ]
    python = _text(made.environment.get("python", "unknown"))
    return {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(version=python, name="Python"),
        "tags": tags_run.TagsRunFacet(tags=tags),
    }


def _job_facets(part: Part, made: Provenance) -> dict[str, Any]:
    from openlineage.client.facet_v2 import job_type_job, source_code_location_job

    facets: dict[str, Any] = {
        "jobType": job_type_job.JobTypeJobFacet(processingType="BATCH", integration="NANOCODE", jobType="STAGE"),
    }
    commit = made.git.get("commit")
    if commit:
        version = f"{commit}{' with local changes' if made.git.get('dirty') else ''}"
        facets["sourceCodeLocation"] = source_code_location_job.SourceCodeLocationJobFacet(
            type="git", url=f"urn:nanocode:code:{part.record.code.fingerprint}", version=version
        )
    return facets


def _dataset_facets(part: Part) -> dict[str, Any]:
    """Version: the record; schema: the files with their sizes and hashes."""
    from openlineage.client.facet_v2 import dataset_version_dataset, schema_dataset

    files = [
        schema_dataset.SchemaDatasetFacetFields(
            name=entry.path, type="file", description=f"{entry.bytes} bytes, sha256 {entry.sha256}"
        )
        for entry in part.record.files
    ]
    return {
        "version": dataset_version_dataset.DatasetVersionDatasetFacet(datasetVersion=part.digest),
        "schema": schema_dataset.SchemaDatasetFacet(fields=files),
    }


def _output_facets(part: Part, rows: Rows) -> dict[str, Any]:
    from openlineage.client.facet_v2 import output_statistics_output_dataset as statistics

    record = part.record
    facet = statistics.OutputStatisticsOutputDatasetFacet(
        rowCount=rows(part), size=record.total_bytes, fileCount=len(record.files)
    )
    return {"outputStatistics": facet}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
