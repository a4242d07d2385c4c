"""Stage: constitutional data. Tasks in; conversations for SFT or preference pairs out, with their provenance.

A stage works on one shard of one split (`steps.constitutional` has what it shares with other stages).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nanocode.agent.sandbox import Sandbox
from nanocode.config import ConstitutionConfig, DecontaminationConfig
from nanocode.constitution.clients import Clients
from nanocode.constitution.earlier import Source
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.gate import Bounds
from nanocode.constitution.output import ConversationFile, PairFile, Sink
from nanocode.constitution.rollout import Rollout, Settings, roll_out
from nanocode.constitution.soul import Soul
from nanocode.stopping import Interrupted
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.situation import TaskTools, tools_for
from nanocode.tasks.task import Task
from nanocode.tokenizer import Tokenizer
from steps.constitutional import Asked, Watching, accounts_path, carry_out, sampling_seed, share_of_budget

__all__ = ["EndpointError", "Inputs", "Interrupted", "PairSettings", "accounts_path", "run", "share_of_budget"]

RolloutSplit = Literal["sft", "preference"]


@dataclass(frozen=True)
class PairSettings:
    """What the gate needs to know of training: the tokenizer file and the longest row."""

    tokenizer: Path
    context_tokens: int


@dataclass(frozen=True)
class Inputs:
    """One shard of one split.

    `shard` is (index, count); `environment` holds the endpoints' keys; `scratch` is where workspaces are made: a folder
    in memory saves the disk's flushes. `earlier` are ledgers to look into before an endpoint is asked.
    """

    split: RolloutSplit
    shard: tuple[int, int]
    soul: Path
    output: Path
    ledger_folder: Path
    pairs: PairSettings | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    scratch: Path | None = None
    earlier: Sequence[Source] = ()
    decontamination: DecontaminationConfig = field(default_factory=DecontaminationConfig)


def run(
    config: ConstitutionConfig,
    seed: int,
    inputs: Inputs,
    report: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write ``conversations.jsonl`` (split sft) or ``pairs.jsonl`` (preference), ``report.json``, ``calibration.json``.

    `report`, `should_stop` and `say` as in `Watching`. Returns the metrics that ``report.json`` holds. Raises what
    `carry_out` raises, SoulError.
    """
    if inputs.split == "preference" and inputs.pairs is None:
        raise ValueError("preference pairs are gated on token ids: give inputs.pairs (tokenizer and context_tokens)")
    soul = Soul.load(inputs.soul)
    tasks = shard_of_tasks(config, seed, inputs)
    asked = Asked(
        "generate_rollouts", config, seed, inputs.soul, inputs.output, _ledger_path(inputs),
        share_of_budget(config, len(tasks)), inputs.environment, inputs.earlier, inputs.decontamination,
    )  # fmt: skip
    settings = Settings(
        accept_score=config.accept_score,
        max_revisions=config.max_revisions,
        max_turns=config.max_turns,
        make_tools=_tools,
        scratch=inputs.scratch,
    )

    def rolled_out(task: Task) -> Callable[[Clients], Any]:
        return functools.partial(_roll_out, task, soul, settings, task_seed(seed, task))

    inputs.output.mkdir(parents=True, exist_ok=True)
    sink = _sink(config, soul, inputs)
    return carry_out(asked, map(rolled_out, tasks), len(tasks), soul, sink, Watching(report, should_stop, say))


async def _roll_out(task: Task, soul: Soul, settings: Settings, seed: int, clients: Clients) -> Rollout:
    return await roll_out(task, clients, soul, settings, seed)


def shard_of_tasks(config: ConstitutionConfig, seed: int, inputs: Inputs) -> list[Task]:
    """The tasks of this shard: every count-th of the split's stream, so that shards together give the whole."""
    index, count = inputs.shard
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count} does not exist: count from 0")
    number = config.sft_tasks if inputs.split == "sft" else config.preference_tasks
    return sample_tasks(inputs.split, number, seed)[index::count]


def task_seed(seed: int, task: Task) -> int:
    """The sampling seed of all requests of one task."""
    return sampling_seed(seed, task.id)


def _tools(task: Task, workspace: Path) -> TaskTools:
    return tools_for(task, workspace, Sandbox())


def _ledger_path(inputs: Inputs) -> Path:
    index, count = inputs.shard
    return inputs.ledger_folder / f"{inputs.split}-{index}-of-{count}.jsonl"


def _sink(config: ConstitutionConfig, soul: Soul, inputs: Inputs) -> Sink:
    if inputs.split == "sft":
        return ConversationFile(inputs.output, soul)
    assert inputs.pairs is not None
    bounds = Bounds(inputs.pairs.context_tokens, config.max_length_ratio, config.accept_score)
    return PairFile(inputs.output, soul, Tokenizer.load(inputs.pairs.tokenizer), bounds)
