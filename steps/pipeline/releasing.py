"""Evaluation of each model, and the release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from artifacts.build import Build, Stage
from artifacts.releases import publish, resolve
from artifacts.repository import Repository
from artifacts.reuse import reused
from steps.pipeline.retention import RetentionLost, retention_fault
from steps.pipeline.run import Run, by_name, require_sandbox, roles

# A base model continues texts; the others were taught to work with tools.
WAYS: Mapping[Literal["base", "sft", "dpo"], Literal["completion", "agent"]] = {
    "base": "completion",
    "sft": "agent",
    "dpo": "agent",
}


def evaluate(
    run: Run,
    what: Literal["base", "sft", "dpo"],
    model: str,
    tokenizer: str,
    shards: Mapping[str, str],
    soul: str,
    preferences: tuple[str, str] | None = None,
    benchmarks: Mapping[str, str] | None = None,
) -> str:
    """One model's evaluation; `preferences` are the records of the pairs and of the reference log-probs, `benchmarks`
    those of the downloaded benchmarks by name.
    """
    config = run.config
    registers = {source.name: source.register_as for source in config.data.sources}

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import evaluate as stage

        folders: dict[str, list[Path]] = {}
        for name, folder in by_name(making, "shards").items():
            folders.setdefault(registers[name], []).append(folder)
        inputs = stage.Inputs(
            making.inputs["model"],
            making.inputs["tokenizer"],
            making.inputs["soul"],
            folders,
            making.output,
            [making.inputs["pairs"]] if preferences else [],
            making.inputs["reference"] if preferences else None,
            by_name(making, "benchmark"),
            WAYS[what],
        )
        require_sandbox()
        return stage.run(config.evaluation, config.dpo, inputs, run.running(making))

    identity: dict[str, Any] = {"evaluation": config.evaluation.identity(), "registers": registers}
    inputs = roles("shards", shards) | {"model": model, "tokenizer": tokenizer, "soul": soul}
    if preferences:
        identity["beta"] = config.dpo.beta
        inputs |= dict(zip(("pairs", "reference"), preferences, strict=True))
    if benchmarks:
        identity["benchmarks"] = config.evaluation.benchmark_identity()
        if "human_eval" in benchmarks:
            identity["benchmarks"]["human_eval"]["way"] = WAYS[what]
        inputs |= roles("benchmark", benchmarks)
    return run.make(
        Stage("evaluate", "evaluation", run.name(f"evaluation-{what}"), "steps.evaluate", identity, inputs), produce
    )


@dataclass(frozen=True)
class Released:
    """A model version: what the store calls it, its record and its figures."""

    name: str
    version: int
    record: str
    metrics: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def assemble(run: Run, model: str, tokenizer: str, soul: str, evaluations: Mapping[str, str], sft_data: str) -> str:
    """All that a user of the model needs, in one artifact."""
    from steps import release as stage

    config = {key: value for key, value in run.config.identity().items() if key not in ("compute", "store")}

    def produce(making: Build) -> Mapping[str, Any]:
        inputs = stage.Inputs(
            making.inputs["model"],
            making.inputs["tokenizer"],
            making.inputs["soul"],
            by_name(making, "evaluation"),
            making.inputs["sft_data"],
            making.output,
        )
        return stage.run(config, inputs)

    inputs = {"model": model, "tokenizer": tokenizer, "soul": soul, "sft_data": sft_data}
    return run.make(
        Stage(
            "release",
            "release",
            run.config.name,
            "steps.release",
            config,
            inputs | roles("evaluation", evaluations),
        ),
        produce,
    )


def release(run: Run, record: str, wall_seconds: float) -> Released:
    """Give what `assemble` made the next version under the config's name, with the run's own figures.

    Raises RetentionLost where the config asks for it, past its gate; otherwise the figures hold the warning.
    """
    figures = dict(run.repository.provenances(record)[-1].metrics)
    fault = retention_fault(figures.get("retention", {}), run.config.evaluation)
    if fault is not None and run.config.evaluation.retention_gate_fails:
        raise RetentionLost(fault)
    if fault is not None:
        figures["retention_warning"] = fault
    figures |= {"wall_seconds": round(wall_seconds, 1), "peak_rss_bytes": lineage_peak(run.repository, record)}
    accepted = reused(run.repository, [record], run.root)
    if accepted:
        figures["reused"] = accepted
    created = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    version = publish(run.repository, run.config.name, record, figures, created)
    kept = resolve(run.repository, f"{run.config.name}@{version}")
    return Released(kept.name, kept.version, kept.record, kept.metrics)


def lineage_peak(repository: Repository, record: str) -> int:
    """The most memory that stages which ran at the same time held together, from their provenance: an upper bound."""
    from artifacts.lineage import reach

    spans = []
    for digest in reach(repository, record).records:
        for made in repository.provenances(digest)[-1:]:
            spans.append((made.run["started"], made.run["finished"], int(made.cost.get("peak_rss_bytes", 0))))
    return max((sum(peak for start, end, peak in spans if start <= moment < end) for moment, _, _ in spans), default=0)
