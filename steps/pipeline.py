"""The pipeline: which stage reads which config, which inputs and which module; the only place that joins the two
layers.

Every function takes a `Run` and the record digests of its inputs and returns the record digest of its output, made or
found. The work itself stands in the stage's own module, imported when it is needed, so that a cached run never loads
JAX.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from artifacts.build import Build, Produce, RunInfo, Stage, build
from artifacts.releases import publish, resolve
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.config import Config
from steps.signals import hush, stop_requested

if TYPE_CHECKING:
    from nanocode.training.stage import Running

ROOT = Path(__file__).resolve().parents[1]
SOUL_PATH = ROOT / "configs" / "SOUL.md"
Split = Literal["sft", "preference"]


def say(line: str) -> None:
    """Print a line at once: a stage's output is watched live. A stage goes on when nobody reads it any more."""
    try:
        print(line, flush=True)  # noqa: T201
    except BrokenPipeError:
        hush()


@dataclass(frozen=True)
class Run:
    """One run of the pipeline: the config, where artifacts live, and how to talk and to be stopped."""

    config: Config
    repository: Repository
    info: RunInfo
    say: Callable[[str], None] = say
    stop_requested: Callable[[], bool] = stop_requested
    root: Path = ROOT
    work: Path = field(default=ROOT / ".nanocode" / "work")

    @classmethod
    def open(cls, config: Config, *, flow: str, run_id: str) -> Run:
        """Open the store: NANOCODE_STORE, else `[store] url`, relative paths counted from the project."""
        store = open_store(os.environ.get("NANOCODE_STORE") or config.store.url, ROOT)
        return cls(config, Repository(store, warn=say), RunInfo(flow, run_id, _user()))

    def make(self, stage: Stage, produce: Produce) -> str:
        """The record digest of `stage`, from the cache or made now; the peak memory goes into its cost."""

        def measured(making: Build) -> Mapping[str, Any] | None:
            metrics = produce(making)
            making.cost["peak_rss_bytes"] = peak_rss_bytes()
            return metrics

        return build(
            self.repository,
            stage,
            measured,
            root=self.root,
            run=self.info,
            work_root=self.work,
            report=self.say,
        ).record_digest

    def name(self, what: str) -> str:
        return f"{self.config.name}/{what}"

    def running(self, making: Build) -> Running:
        """How training is carried out: checkpoints under the stage's key, this run's voice and stop signal."""
        import jax

        from nanocode.training.stage import Running

        jax.config.update("jax_compilation_cache_dir", str(self.root / ".nanocode" / "xla"))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
        making.environment["devices"] = sorted({device.device_kind for device in jax.devices()})
        compute = self.config.compute
        return Running(
            self.say,
            making.checkpoints,
            compute.checkpoint_every_seconds,
            compute.keep_checkpoints,
            self.stop_requested,
        )


def peak_rss_bytes() -> int:
    """Peak resident memory of this process and of its largest finished child."""
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + children) * 1024


def require_sandbox() -> None:
    """Raise SandboxUnavailable now: a tool would report it to the model, and the report would end up in the data."""
    from nanocode.agent.sandbox import Sandbox

    Sandbox().check()


def _user() -> str:
    return os.environ.get("METAFLOW_USER") or getpass.getuser()


# -- data and tokenizer


def shard_data(run: Run, source_name: str) -> str:
    """One source's shards."""
    from steps import shard_data as stage

    config = run.config.data
    (source,) = [source for source in config.sources if source.name == source_name]
    raw = import_file(run, "source", f"source-{source_name}", "manifest.json", stage.manifest(source))
    limits = {key: value for key, value in config.identity().items() if key != "sources"}
    own = {key: value for key, value in source.identity().items() if key != "weight"}
    return run.make(
        Stage(
            "shard_data",
            "shards",
            run.name(f"shards-{source_name}"),
            "steps.shard_data",
            {"data": limits, "source": own},
            {"raw": raw},
        ),
        lambda making: stage.run(config, source, making.output, run.say),
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

        return stage.run(run.config.tokenizer, by_name(making, "shards"), making.output, run.say)

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


# -- training


def pretrain(run: Run, shards: Mapping[str, str], tokenizer: str) -> str:
    config = run.config
    weights = {source.name: source.weight for source in config.data.sources}

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import pretrain as stage

        inputs = stage.Inputs(by_name(making, "shards"), weights, making.inputs["tokenizer"], making.output)
        return stage.run(config.pretrain, config.model, config.seed, inputs, run.running(making))

    identity = {"model": config.model.identity(), "pretrain": config.pretrain.identity()}
    return run.make(
        Stage(
            "pretrain",
            "model",
            run.name("base"),
            "steps.pretrain",
            identity | {"seed": config.seed, "weights": weights},
            roles("shards", shards) | {"tokenizer": tokenizer},
        ),
        produce,
    )


def sft(run: Run, base: str, tokenizer: str, conversations: str) -> str:
    config = run.config

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import sft as stage

        inputs = stage.Inputs(
            making.inputs["base"], making.inputs["tokenizer"], [making.inputs["conversations"]], making.output
        )
        return stage.run(config.sft, config.seed, inputs, run.running(making))

    return run.make(
        Stage(
            "sft",
            "model",
            run.name("sft"),
            "steps.sft",
            {"sft": config.sft.identity(), "seed": config.seed},
            {"base": base, "tokenizer": tokenizer, "conversations": conversations},
        ),
        produce,
    )


def reference(run: Run, model: str, tokenizer: str, pairs: str) -> str:
    """The SFT model's log-probs of every pair, computed once however often DPO is tuned."""

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import dpo as stage

        inputs = stage.Inputs(
            making.inputs["model"], making.inputs["tokenizer"], [making.inputs["pairs"]], making.output
        )
        return stage.run_reference(inputs, run.running(making))

    return run.make(
        Stage(
            "reference",
            "log_probs",
            run.name("reference"),
            "steps.dpo",
            {},
            {"model": model, "tokenizer": tokenizer, "pairs": pairs},
        ),
        produce,
    )


def dpo(run: Run, model: str, tokenizer: str, pairs: str, reference: str) -> str:
    config = run.config

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import dpo as stage

        inputs = stage.Inputs(
            making.inputs["model"],
            making.inputs["tokenizer"],
            [making.inputs["pairs"]],
            making.output,
            making.inputs["reference"],
        )
        require_sandbox()
        return stage.run(config.dpo, config.evaluation, config.seed, inputs, run.running(making))

    decoding = {"max_turns": config.evaluation.max_turns, "max_new_tokens": config.evaluation.max_new_tokens}
    return run.make(
        Stage(
            "dpo",
            "model",
            run.name("dpo"),
            "steps.dpo",
            {"dpo": config.dpo.identity(), "seed": config.seed, "retention": decoding},
            {"model": model, "tokenizer": tokenizer, "pairs": pairs, "reference": reference},
        ),
        produce,
    )


# -- constitutional data


def rollout_shards(config: Config) -> list[tuple[Split, int, int]]:
    """(split, index, count) of every shard; preference data is the smaller part and gets fewer shards."""
    count = config.constitution.rollout_shards
    share = config.constitution.preference_tasks / config.constitution.sft_tasks
    counts: dict[Split, int] = {"sft": count, "preference": max(1, round(count * share))}
    return [(split, index, total) for split, total in counts.items() for index in range(total)]


def generate_rollouts(run: Run, shard: tuple[Split, int, int], tokenizer: str, soul: str) -> str:
    """One shard of generated data. Finished requests are checkpointed with the rest of the stage's state."""
    config = run.config
    split, index, count = shard
    constitution = config.constitution.identity()
    constitution.pop("preference_tasks" if split == "sft" else "sft_tasks")
    inputs = {"soul": soul} | ({"tokenizer": tokenizer} if split == "preference" else {})

    def produce(making: Build) -> Mapping[str, Any]:
        from nanocode.training.progress import Progress
        from steps import generate_rollouts as stage

        require_sandbox()
        ledger = making.scratch / "ledger"
        saved = making.checkpoints.latest()
        if saved is not None:
            making.checkpoints.restore(saved, ledger)
            run.say(f"generate_rollouts: {saved.step:,} requests were answered before and are not repeated")
        progress: list[Progress] = []
        saved_at = [time.monotonic()]

        def save() -> None:
            if answered := sum(call_log.read_bytes().count(b"\n") for call_log in ledger.glob("*.jsonl")):
                making.checkpoints.save(answered, ledger, {})
                making.checkpoints.prune(config.compute.keep_checkpoints)
            saved_at[0] = time.monotonic()

        def report(done: int, total: int) -> None:
            if not progress:
                progress.append(Progress(f"rollouts {split} {index + 1}/{count}", total, run.say, unit="task"))
            progress[0].update(done)
            if time.monotonic() - saved_at[0] >= config.compute.checkpoint_every_seconds:
                save()

        pairs = None
        if split == "preference":
            pairs = stage.PairSettings(making.inputs["tokenizer"] / "tokenizer.json", config.model.context_tokens)
        stage_inputs = stage.Inputs(
            split=split,
            shard=(index, count),
            soul=making.inputs["soul"] / "SOUL.md",
            output=making.output,
            ledger_folder=ledger,
            pairs=pairs,
        )
        try:
            metrics = stage.run(config.constitution, config.seed, stage_inputs, report, run.stop_requested)
        except (stage.Interrupted, stage.EndpointError):
            save()
            raise
        # Requests finish in any order; what is kept must not depend on it.
        calls = sorted(line for call_log in ledger.glob("*.jsonl") for line in call_log.read_bytes().splitlines(True))
        (making.output / "calls.jsonl").write_bytes(b"".join(calls))
        return metrics

    return run.make(
        Stage(
            "generate_rollouts",
            "rollouts",
            run.name(f"rollouts-{split}-{index + 1}-of-{count}"),
            "steps.generate_rollouts",
            {
                "constitution": constitution,
                "seed": config.seed,
                "split": split,
                "shard": [index, count],
                "context_tokens": config.model.context_tokens if split == "preference" else None,
            },
            inputs,
        ),
        produce,
    )


def gather_rollouts(run: Run, split: Split, shards: Sequence[str]) -> str:
    def produce(making: Build) -> Mapping[str, Any]:
        from steps import gather_rollouts as stage

        folders = [folder for _, folder in sorted(making.inputs.items())]
        return stage.run(split, folders, making.output)

    numbered = {f"shard_{index:04}": shard for index, shard in enumerate(shards)}
    return run.make(
        Stage(
            "gather_rollouts",
            "conversations" if split == "sft" else "pairs",
            run.name(f"data-{split}"),
            "steps.gather_rollouts",
            {"split": split},
            numbered,
        ),
        produce,
    )


# -- evaluation and release


def evaluate(
    run: Run,
    what: Literal["base", "sft", "dpo"],
    model: str,
    tokenizer: str,
    shards: Mapping[str, str],
    soul: str,
    preferences: tuple[str, str] | None = None,
) -> str:
    """One model's evaluation; `preferences` are the records of the pairs and of the reference log-probs."""
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
        )
        require_sandbox()
        return stage.run(config.evaluation, config.dpo, inputs, run.running(making))

    identity: dict[str, Any] = {"evaluation": config.evaluation.identity(), "registers": registers}
    inputs = roles("shards", shards) | {"model": model, "tokenizer": tokenizer, "soul": soul}
    if preferences:
        identity["beta"] = config.dpo.beta
        inputs |= dict(zip(("pairs", "reference"), preferences, strict=True))
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


def release(
    run: Run,
    model: str,
    tokenizer: str,
    soul: str,
    evaluations: Mapping[str, str],
    sft_data: str,
    wall_seconds: float,
) -> Released:
    """Assemble the model version and give it the next number under the config's name."""
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
    record = run.make(
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
    figures = dict(run.repository.provenances(record)[-1].metrics)
    figures |= {"wall_seconds": round(wall_seconds, 1), "peak_rss_bytes": lineage_peak(run.repository, record)}
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


def roles(prefix: str, named: Mapping[str, str]) -> dict[str, str]:
    """Several inputs of one kind under one role each."""
    return {f"{prefix}.{name}": digest for name, digest in sorted(named.items())}


def by_name(making: Build, prefix: str) -> dict[str, Path]:
    """The inverse of `roles`, as folders."""
    start = f"{prefix}."
    return {role.removeprefix(start): folder for role, folder in making.inputs.items() if role.startswith(start)}
