"""From sources to shards, the tokenizer, token shards and packing plans."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from typing import Any

from artifacts.build import Build, Stage
from steps.pace import Pace
from steps.pipeline.run import ROOT, Run, by_name, roles

SOUL_PATH = ROOT / "configs" / "SOUL.md"


def shard_data(run: Run, source_name: str) -> str:
    """One source's shards. A stage that is stopped or killed goes on where its shards were last whole."""
    from steps import shard_data as stage

    config = run.config.data
    (source,) = [source for source in config.sources if source.name == source_name]
    manifest = stage.manifest(source)
    raw = import_file(run, "source", f"source-{source_name}", "manifest.json", manifest)
    limits = {key: value for key, value in config.identity().items() if key != "sources"}
    own = {key: value for key, value in source.identity().items() if key != "weight"}

    def produce(making: Build) -> Mapping[str, Any]:
        saving = stage.Saving(making.checkpoints, run.config.compute.checkpoint_every_seconds)
        return stage.run(
            config,
            source,
            making.output,
            run.say,
            manifest=manifest,
            saving=saving,
            stop_requested=run.stop_asked(making),
        )

    return run.make(
        Stage(
            "shard_data",
            "shards",
            run.name(f"shards-{source_name}"),
            "steps.shard_data",
            {"data": limits, "source": own},
            {"raw": raw},
        ),
        produce,
    )


def import_file(run: Run, kind: str, name: str, file_name: str, content: bytes) -> str:
    """Bytes from outside as a record: where lineage starts."""
    from steps import import_file as stage

    config = {"file": file_name, "sha256": hashlib.sha256(content).hexdigest()}
    return run.make(
        Stage("import_file", kind, run.name(name), "steps.import_file", config),
        lambda making: stage.run(file_name, content, making.output),
    )


def import_soul(run: Run) -> str:
    return import_file(run, "soul", "soul", "SOUL.md", SOUL_PATH.read_bytes())


def fit_tokenizer(run: Run, shards: Mapping[str, str]) -> str:
    def produce(making: Build) -> Mapping[str, Any]:
        from steps import fit_tokenizer as stage

        return stage.run(run.config.tokenizer, by_name(making, "shards"), making.output, run.say, os.cpu_count() or 1)

    return run.make(
        Stage(
            "fit_tokenizer",
            "tokenizer",
            run.name("tokenizer"),
            "steps.fit_tokenizer",
            {"tokenizer": run.config.tokenizer.identity()},
            roles("shards", shards),
        ),
        produce,
    )


def tokenise(run: Run, source_name: str, shards: str, tokenizer: str) -> str:
    """One source's token shards; whole ones are kept when the stage is stopped."""

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import tokenise as stage

        saved = making.checkpoints.latest()
        if saved is not None:
            making.checkpoints.restore(saved, making.output)
            run.say(f"tokenise: {saved.step} shards of {source_name} were finished before")
        pace = Pace(run.config.compute.checkpoint_every_seconds)

        def save(finished: Mapping[str, Mapping[str, int]]) -> None:
            if pace.is_due:
                with pace.saving():
                    making.checkpoints.save(len(finished), making.output, finished)
                    making.checkpoints.prune(1)

        inputs = stage.Inputs(
            making.inputs["shards"], making.inputs["tokenizer"], making.output, saved.details if saved else {}
        )
        return stage.run(inputs, os.cpu_count() or 1, run.say, save, run.stop_asked(making))

    return run.make(
        Stage(
            "tokenise",
            "tokens",
            run.name(f"tokens-{source_name}"),
            "steps.tokenise",
            {},
            {"shards": shards, "tokenizer": tokenizer},
        ),
        produce,
    )


def plan_rows(run: Run, source_name: str, tokens: str) -> str:
    """Which pieces of one source's documents make up which row of the config's context."""
    context_tokens = run.config.model.context_tokens

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import plan_rows as stage

        return stage.run(making.inputs["tokens"], context_tokens, making.output, run.say)

    return run.make(
        Stage(
            "plan_rows",
            "plan",
            run.name(f"plan-{source_name}"),
            "steps.plan_rows",
            {"context_tokens": context_tokens},
            {"tokens": tokens},
        ),
        produce,
    )
