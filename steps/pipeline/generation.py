"""Constitutional data: rollouts in shards, then one set of conversations and one of pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from artifacts.build import Build, Stage
from nanocode.config import Config
from steps.pipeline.asking import Asking, make_by_asking
from steps.pipeline.run import Run, require_sandbox

Split = Literal["sft", "preference"]
SPLITS: tuple[Split, ...] = get_args(Split)


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
    return make_by_asking(
        run,
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
            }
            | decontaminated(config),
            {"soul": soul} | ({"tokenizer": tokenizer} if split == "preference" else {}),
        ),
        f"rollouts {split} {index + 1}/{count}",
        lambda making, asking: _generate(run, shard, making, asking),
    )


def _generate(run: Run, shard: tuple[Split, int, int], making: Build, asking: Asking) -> Mapping[str, Any]:
    from steps import generate_rollouts as stage

    require_sandbox()
    split, index, count = shard
    config = run.config
    pairs = None
    if split == "preference":
        pairs = stage.PairSettings(making.inputs["tokenizer"] / "tokenizer.json", config.model.context_tokens)
    inputs = stage.Inputs(
        split=split,
        shard=(index, count),
        soul=making.inputs["soul"] / "SOUL.md",
        output=making.output,
        ledger_folder=asking.ledger_folder,
        pairs=pairs,
        earlier=asking.earlier,
        decontamination=config.data.decontamination,
    )
    return stage.run(config.constitution, config.seed, inputs, asking.report, run.stop_asked(making), run.say)


def decontaminated(config: Config) -> dict[str, Any]:
    """What decides which generated words are dropped; nothing where there is no evaluation to compare them with."""
    chosen = config.data.decontamination
    return {"decontamination": chosen.identity()} if chosen.sets else {}


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
