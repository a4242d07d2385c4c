"""What a run would do, without doing it: the stages go through their own functions, and `make` only looks things up.

A stage whose key has a record is `cached`. One without `runs`, and what needs its output `follows`: without reasons of
its own it is made only if that comes out different from before. A stage is `blocked` when the run would end there: its
raw source cannot be read, or nothing can be reused as asked. Nothing is read but keys, records and the listings of raw
sources; no accelerator, sandbox or endpoint is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from artifacts.build import Produce, Stage
from artifacts.canonical import digest
from artifacts.checkpoints import CheckpointStore
from artifacts.environment import environment
from artifacts.explain import Explanation, KeyIndex, environment_differences, explain
from artifacts.fingerprint import FIRST_PARTY, code_fingerprint
from artifacts.records import ArtifactError, Fingerprint, Provenance, key_payload
from artifacts.reuse import find_reusable
from nanocode.config import InstructionSource
from nanocode.data.documents import SourceError
from nanocode.evaluation.benchmarks import BenchmarkError
from steps.pipeline.benchmarks import benchmark_artifact, benchmark_paths, import_benchmark
from steps.pipeline.data import fit_tokenizer, import_soul, shard_data
from steps.pipeline.generation import SPLITS, Split, gather_rollouts, generate_rollouts, rollout_shards
from steps.pipeline.instructions import convert_set
from steps.pipeline.outlook import Outlook, expected
from steps.pipeline.releasing import assemble, evaluate
from steps.pipeline.restyling import restyle_instructions
from steps.pipeline.run import Run
from steps.pipeline.training import dpo, pretrain, reference, sft


@dataclass(frozen=True)
class Survey(Run):
    """A run that makes nothing: `outlooks` collects what it would have made, in the order of the stages."""

    outlooks: list[Outlook] = field(default_factory=list)

    def make(self, stage: Stage, produce: Produce) -> str:
        """The digest of the record that answers, or a stand-in for one that is yet to be made."""
        del produce
        waits_for = {role: each for role, each in stage.inputs.items() if each in self._to_come}
        contents: dict[str, Any] = {
            role: None if role in waits_for else self._content(each) for role, each in stage.inputs.items()
        }
        code = code_fingerprint(stage.module, FIRST_PARTY, self.root)
        payload = key_payload(stage.step, code.fingerprint, stage.config, contents)
        outlook = self._found(stage, payload, code) if not waits_for else None
        return self.note(outlook or self._unmade(stage, payload, code, waits_for))

    def note(self, outlook: Outlook) -> str:
        """Keep an outlook; returns what stands for the stage's output."""
        self.outlooks.append(outlook)
        if outlook.record is not None:
            return outlook.record
        stand_in = f"not made yet: {outlook.name}"
        self._to_come[stand_in] = outlook
        return stand_in

    def _found(self, stage: Stage, payload: Mapping[str, Any], code: Fingerprint) -> Outlook | None:
        """The outlook of a stage that need not be made, or cannot be reused as asked."""
        record = self.repository.find(digest(payload))
        if record is not None:
            return Outlook(stage.step, stage.name, "cached", record.digest, **self._circumstances(record.digest))
        if not stage.is_among(self.reuse):
            return None
        try:
            accepted = find_reusable(self.repository, payload, stage.name, code, self._index)
        except ArtifactError as error:
            return Outlook(stage.step, stage.name, "blocked", obstacle=str(error))
        circumstances = self._circumstances(accepted.record.digest)
        return Outlook(stage.step, stage.name, "reused", accepted.record.digest, accepted.explanation, **circumstances)

    def _unmade(
        self, stage: Stage, payload: Mapping[str, Any], code: Fingerprint, waits_for: Mapping[str, str]
    ) -> Outlook:
        explanation = explain(self.repository, payload, code, self._index.nearest(payload, stage.name))
        made = self._made(explanation)
        before = {role: self._to_come[each] for role, each in waits_for.items()}
        # What an input takes and how large it comes out go together: unknown there, unknown here.
        saved = CheckpointStore(self.repository.store, digest(payload)).latest() if not waits_for else None
        is_known = made is not None and all(each.expected is not None for each in before.values())
        return Outlook(
            stage.step,
            stage.name,
            "follows" if waits_for else "runs",
            None,
            explanation,
            {role: each.name for role, each in before.items()},
            expected(made, explanation.config) if made is not None and is_known else None,
            saved_step=saved.step if saved is not None else None,
            **(self._circumstances(made.record) if made is not None else {}),
        )

    def _made(self, explanation: Explanation) -> Provenance | None:
        return self._last_making(explanation.against.record) if explanation.against else None

    def _last_making(self, record_digest: str) -> Provenance | None:
        makings = self.repository.provenances(record_digest)
        return makings[-1] if makings else None

    def _circumstances(self, record_digest: str) -> dict[str, Any]:
        """What is told of a record's latest making: how its environment differs from this one, its devices."""
        made = self._last_making(record_digest)
        if made is None:
            return {}
        differing = environment_differences(made.environment, self._environment)
        return {"environment": differing, "devices": tuple(made.environment.get("devices") or ())}

    def _content(self, record_digest: str) -> str:
        if record_digest not in self._contents:
            self._contents[record_digest] = self.repository.read_record(record_digest).content_digest
        return self._contents[record_digest]

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.repository)

    @cached_property
    def _to_come(self) -> dict[str, Outlook]:
        return {}

    @cached_property
    def _contents(self) -> dict[str, str]:
        return {}

    @cached_property
    def _environment(self) -> Mapping[str, Any]:
        return environment()


def survey(run: Survey) -> list[Outlook]:
    """What a run would do, stage by stage; a source that cannot be read blocks its own stage alone."""

    def shards(_: Run, source_name: str) -> str:
        try:
            return shard_data(run, source_name)
        except SourceError as error:
            blocked = Outlook("shard_data", run.name(f"shards-{source_name}"), "blocked", obstacle=str(error))
            return run.note(blocked)

    def conversations(_: Run, source: InstructionSource, tokenizer: str) -> str:
        try:
            return convert_set(run, source, tokenizer)
        except SourceError as error:
            name = run.name(f"instructions-{source.name}")
            return run.note(Outlook("convert_instructions", name, "blocked", obstacle=str(error)))

    def benchmark(_: Run, name: str) -> str:
        try:
            return import_benchmark(run, name)
        except BenchmarkError as error:
            artifact = benchmark_artifact(run, name)
            return run.note(Outlook("import_benchmark", artifact, "blocked", obstacle=str(error)))

    walk(run, shards, conversations, benchmark)
    return run.outlooks


def walk(
    run: Run,
    shards_of: Callable[[Run, str], str] = shard_data,
    conversations_of: Callable[[Run, InstructionSource, str], str] = convert_set,
    benchmark_of: Callable[[Run, str], str] = import_benchmark,
) -> str:
    """Every stage in turn; returns the record of the assembled model version.

    The flow's wiring in one process: a test of whole pipelines holds the one against the other.
    """
    benchmarks = {name: benchmark_of(run, name) for name in benchmark_paths(run.config.evaluation)}
    shards = {source.name: shards_of(run, source.name) for source in run.config.data.sources}
    soul = import_soul(run)
    tokenizer = fit_tokenizer(run, shards)
    base = pretrain(run, shards, tokenizer)
    evaluations = {"base": evaluate(run, "base", base, tokenizer, shards, soul, benchmarks=benchmarks)}
    rollouts = {split: _rollouts(run, split, tokenizer, soul) for split in SPLITS}
    sets = {source.name: conversations_of(run, source, tokenizer) for source in run.config.constitution.sources}
    restyled = {split: restyle_instructions(run, split, sets, tokenizer, soul) for split in SPLITS}
    conversations = gather_rollouts(run, "sft", rollouts["sft"])
    pairs = gather_rollouts(run, "preference", [*rollouts["preference"], *restyled["preference"].values()])
    sft_model = sft(run, base, tokenizer, conversations, sets | restyled["sft"])
    log_probs = reference(run, sft_model, tokenizer, pairs)
    dpo_model = dpo(run, sft_model, tokenizer, pairs, log_probs)
    evaluations["sft"] = evaluate(run, "sft", sft_model, tokenizer, shards, soul, benchmarks=benchmarks)
    evaluations["dpo"] = evaluate(run, "dpo", dpo_model, tokenizer, shards, soul, (pairs, log_probs), benchmarks)
    return assemble(run, dpo_model, tokenizer, soul, evaluations, conversations)


def _rollouts(run: Run, split: Split, tokenizer: str, soul: str) -> list[str]:
    shards = [shard for shard in rollout_shards(run.config) if shard[0] == split]
    return [generate_rollouts(run, shard, tokenizer, soul) for shard in shards]
