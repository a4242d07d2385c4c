"""From sources to shards, the tokenizer, token shards and packing plans."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping
from typing import Any

from artifacts.build import Build, Stage
from steps.pipeline.run import ROOT, Run, by_name, roles

SOUL_PATH = ROOT / "configs" / "SOUL.md"
# Saving hashes all that is there: it may take this share of the time at most.
_SAVING_SHARE = 0.1


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
            stop_requested=run.stop_requested,
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
        keeper = _Keeper(making, run.config.compute.checkpoint_every_seconds)
        inputs = stage.Inputs(
            making.inputs["shards"], making.inputs["tokenizer"], making.output, saved.details if saved else {}
        )
        return stage.run(inputs, os.cpu_count() or 1, run.say, keeper.save, run.stop_requested)

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


class _Keeper:
    """Checkpoints of the shards that are whole, now and then."""

    def __init__(self, making: Build, every_seconds: float) -> None:
        self._making, self._every_seconds = making, every_seconds
        self._saved_at, self._saving_seconds = time.monotonic(), 0.0

    def save(self, finished: Mapping[str, Mapping[str, int]]) -> None:
        started = time.monotonic()
        if started - self._saved_at < max(self._every_seconds, self._saving_seconds / _SAVING_SHARE):
            return
        self._making.checkpoints.save(len(finished), self._making.output, finished)
        self._making.checkpoints.prune(1)
        self._saved_at = time.monotonic()
        self._saving_seconds = self._saved_at - started


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
