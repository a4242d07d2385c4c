"""Constitutional data: rollouts in shards, then one set of conversations and one of pairs."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from artifacts.build import Build, Stage
from nanocode.config import Config
from steps.pipeline.run import Run, require_sandbox
from steps.pipeline.spend import answers_in, endpoint_cost, prices

Split = Literal["sft", "preference"]


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
            {"soul": soul} | ({"tokenizer": tokenizer} if split == "preference" else {}),
        ),
        lambda making: _generate(run, shard, making),
    )


def _generate(run: Run, shard: tuple[Split, int, int], making: Build) -> Mapping[str, Any]:
    """Make a shard, going on after the requests that an earlier attempt had answered."""
    from nanocode.training.progress import Progress
    from steps import generate_rollouts as stage

    require_sandbox()
    split, index, count = shard
    config, answers = run.config, _Answers(run, making)
    progress: list[Progress] = []

    def report(done: int, total: int) -> None:
        if not progress:
            progress.append(Progress(f"rollouts {split} {index + 1}/{count}", total, run.say, unit="task"))
        progress[0].update(done)
        answers.save_when_due()

    pairs = None
    if split == "preference":
        pairs = stage.PairSettings(making.inputs["tokenizer"] / "tokenizer.json", config.model.context_tokens)
    inputs = stage.Inputs(
        split=split,
        shard=(index, count),
        soul=making.inputs["soul"] / "SOUL.md",
        output=making.output,
        ledger_folder=answers.folder,
        pairs=pairs,
    )
    try:
        metrics = stage.run(config.constitution, config.seed, inputs, report, run.stop_asked(making))
    except (stage.Interrupted, stage.EndpointError):
        answers.save()
        raise
    (making.output / "calls.jsonl").write_bytes(answers.in_order())
    making.cost.update(endpoint_cost(answers_in(answers.folder), prices(config.constitution)))
    return metrics


class _Answers:
    """The ledger of answered requests: restored from the newest checkpoint, and saved now and then."""

    def __init__(self, run: Run, making: Build) -> None:
        self.folder = making.scratch / "ledger"
        self._checkpoints, self._compute = making.checkpoints, run.config.compute
        saved = making.checkpoints.latest()
        if saved is not None:
            making.checkpoints.restore(saved, self.folder)
            run.say(f"generate_rollouts: {saved.step:,} requests were answered before and are not repeated")
        self._saved_at = time.monotonic()

    def save(self) -> None:
        if answered := sum(call_log.read_bytes().count(b"\n") for call_log in self.folder.glob("*.jsonl")):
            self._checkpoints.save(answered, self.folder, {})
            self._checkpoints.prune(self._compute.keep_checkpoints)
        self._saved_at = time.monotonic()

    def save_when_due(self) -> None:
        if time.monotonic() - self._saved_at >= self._compute.checkpoint_every_seconds:
            self.save()

    def in_order(self) -> bytes:
        """All lines, sorted: requests finish in any order, and what is kept must not depend on it."""
        return b"".join(
            sorted(line for call_log in self.folder.glob("*.jsonl") for line in call_log.read_bytes().splitlines(True))
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
