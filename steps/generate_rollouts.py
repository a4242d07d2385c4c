"""Stage: constitutional data. Tasks in; conversations for SFT or preference pairs out, with their provenance.

A stage works on one shard of one split. Requests finish in any order, the output is in task order. Finished requests
are in the ledger: a stage that is killed and started again with the same ledger folder asks only for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution import prompts
from nanocode.constitution.endpoint import Endpoint, EndpointError
from nanocode.constitution.gate import Bounds, cohens_d, decide
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.prompts import PARTS
from nanocode.constitution.records import Counts, conversation_row, pair_row
from nanocode.constitution.rollout import Clients, Rollout, Settings, roll_out
from nanocode.constitution.rules import adheres
from nanocode.constitution.soul import Soul
from nanocode.conversation import from_json
from nanocode.serving.teacher_process import TeacherServer
from nanocode.stopping import Interrupted
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.task import Task
from nanocode.tokenizer import Tokenizer

RolloutSplit = Literal["sft", "preference"]

# A stage gives up early when at least this share of at least so many finished tasks got no answer.
BREAKER_SHARE, BREAKER_TASKS = 0.5, 10


@dataclass(frozen=True)
class PairSettings:
    """What the gate needs to know of training: the tokenizer file and the longest row."""

    tokenizer: Path
    context_tokens: int


@dataclass(frozen=True)
class Inputs:
    """One shard of one split.

    `shard` is (index, count); `environment` holds the endpoints' keys; `scratch` is where workspaces are made: a folder
    in memory saves the disk's flushes.
    """

    split: RolloutSplit
    shard: tuple[int, int]
    soul: Path
    output: Path
    ledger_folder: Path
    pairs: PairSettings | None = None
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    scratch: Path | None = None


def run(
    config: ConstitutionConfig,
    seed: int,
    inputs: Inputs,
    report: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Write ``conversations.jsonl`` (split sft) or ``pairs.jsonl`` (split preference), and ``report.json``.

    `report` is told (finished, all) after each task; `should_stop` is asked before each. Returns the metrics that
    ``report.json`` holds. Raises EndpointError when tasks were lost to an endpoint that may recover (a second start
    asks for those alone), Interrupted when stopped, SoulError, LedgerError, TeacherError.
    """
    if inputs.split == "preference" and inputs.pairs is None:
        raise ValueError("preference pairs are gated on token ids: give inputs.pairs (tokenizer and context_tokens)")
    soul = Soul.load(inputs.soul)
    tasks = shard_of_tasks(config, seed, inputs)
    inputs.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        base_urls = _base_urls(config, inputs.soul, stack)
        ledger = stack.enter_context(Ledger(_ledger_path(inputs)))
        outcomes = asyncio.run(
            _Stage(config, seed, inputs, soul, ledger, base_urls, report, should_stop).roll_out_all(tasks)
        )
    if inputs.split == "sft":
        metrics = _write_conversations(outcomes, soul, inputs)
    else:
        metrics = _write_pairs(outcomes, soul, config, inputs)
    text = json.dumps(metrics, indent=2, sort_keys=True, ensure_ascii=False)
    (inputs.output / "report.json").write_text(text + "\n", encoding="utf-8")
    return metrics


def shard_of_tasks(config: ConstitutionConfig, seed: int, inputs: Inputs) -> list[Task]:
    """The tasks of this shard: every count-th of the split's stream, so that shards together give the whole."""
    index, count = inputs.shard
    if not 0 <= index < count:
        raise ValueError(f"shard {index} of {count} does not exist: count from 0")
    number = config.sft_tasks if inputs.split == "sft" else config.preference_tasks
    return sample_tasks(inputs.split, number, seed)[index::count]


def task_seed(seed: int, task: Task) -> int:
    """The sampling seed of all requests of one task: 31 bits, so that every endpoint takes it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{task.id}".encode()).digest()[:4], "big") >> 1


class _Stage:
    """Rolls out a shard's tasks, a bounded number at a time."""

    def __init__(
        self,
        config: ConstitutionConfig,
        seed: int,
        inputs: Inputs,
        soul: Soul,
        ledger: Ledger,
        base_urls: Mapping[str, str],
        report: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._config, self._seed, self._inputs, self._soul = config, seed, inputs, soul
        self._ledger, self._base_urls = ledger, base_urls
        self._report, self._should_stop = report, should_stop
        self._finished = 0
        self._lost: list[EndpointError] = []

    async def roll_out_all(self, tasks: list[Task]) -> list[Rollout | EndpointError]:
        """One outcome a task, in task order; an EndpointError stands for a task that an endpoint refused for good."""
        limit = asyncio.Semaphore(self._config.concurrency)
        endpoints = {part: self._endpoint(getattr(self._config, part), part, limit) for part in PARTS}
        outcomes: dict[int, Rollout | EndpointError] = {}
        pending = iter(enumerate(tasks))

        async def worker() -> None:
            for index, task in pending:
                if self._should_stop() or self._is_hopeless():
                    return
                outcomes[index] = await self._one(task, Clients(**endpoints))
                self._report(len(outcomes), len(tasks))

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._config.concurrency):
                    group.create_task(worker())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None
        finally:
            for endpoint in endpoints.values():
                await endpoint.close()
        self._raise_unless_complete(len(outcomes), len(tasks))
        return [outcomes[index] for index in range(len(tasks))]

    def _endpoint(self, config: EndpointConfig, part: str, limit: asyncio.Semaphore) -> Endpoint:
        return Endpoint(
            config,
            base_url=self._base_urls[part],
            environment=self._inputs.environment,
            ledger=self._ledger,
            template=prompts.template_digest(),
            limit=limit,
            rng=random.Random(f"{self._seed}/{part}"),
        )

    async def _one(self, task: Task, clients: Clients) -> Rollout | EndpointError:
        settings = Settings(
            accept_score=self._config.accept_score,
            max_revisions=self._config.max_revisions,
            max_turns=self._config.max_turns,
            make_toolbox=_toolbox,
            scratch=self._inputs.scratch,
        )
        try:
            return await roll_out(task, clients, self._soul, settings, task_seed(self._seed, task))
        except EndpointError as error:
            self._lost.append(error)
            return error
        finally:
            self._finished += 1

    def _is_hopeless(self) -> bool:
        return len(self._lost) >= BREAKER_TASKS and len(self._lost) >= BREAKER_SHARE * self._finished

    def _raise_unless_complete(self, finished: int, total: int) -> None:
        if self._is_hopeless():
            raise EndpointError(
                f"{len(self._lost)} of {finished} tasks got no answer, so the rest was not tried; the last: "
                f"{self._lost[-1]}",
                self._lost[-1].transient,
            )
        if finished < total:
            raise Interrupted(f"stopped with {finished} of {total} tasks finished: start again to go on")
        recoverable = [error for error in self._lost if error.transient]
        if recoverable:
            raise EndpointError(
                f"{len(recoverable)} of {total} tasks lack an answer (the rest is kept; start again to ask for those "
                f"alone); the last: {recoverable[-1]}",
                transient=True,
            )


def _toolbox(workspace: Path) -> Toolbox:
    return Toolbox(workspace, Policy("auto"), Sandbox())


def _base_urls(config: ConstitutionConfig, soul: Path, stack: ExitStack) -> dict[str, str]:
    """The address of each part; the embedded teacher, started once, for those that name none."""
    given: dict[str, str] = {part: getattr(config, part).base_url for part in PARTS}
    if all(given.values()):
        return given
    teacher = stack.enter_context(TeacherServer(soul))
    return {part: url or teacher for part, url in given.items()}


def _ledger_path(inputs: Inputs) -> Path:
    index, count = inputs.shard
    return inputs.ledger_folder / f"{inputs.split}-{index}-of-{count}.jsonl"


def _write_conversations(outcomes: Iterable[Rollout | EndpointError], soul: Soul, inputs: Inputs) -> dict[str, Any]:
    """Both registers of every kept task: the draft as it was, and the accepted version."""
    counts, rows = Counts(), []
    for outcome in outcomes:
        if isinstance(outcome, EndpointError):
            counts.add_refused()
            continue
        counts.add(outcome)
        if outcome.accepted is not None and not outcome.draft_accepted:
            rows.append(conversation_row(outcome, "stock", outcome.draft, soul))
        if outcome.accepted is not None:
            rows.append(conversation_row(outcome, "soul", outcome.accepted, soul))
    _write_lines(inputs.output / "conversations.jsonl", rows)
    registers = Counter(row["register"] for row in rows)
    adhering = sum(adheres(from_json(row["messages"]), soul) for row in rows)
    adherence = adhering / len(rows) if rows else None
    return counts.metrics() | {"conversations": dict(registers), "adherence": adherence}


def _write_pairs(
    outcomes: Iterable[Rollout | EndpointError], soul: Soul, config: ConstitutionConfig, inputs: Inputs
) -> dict[str, Any]:
    """(accepted version, draft) of every kept task that passes the gate."""
    assert inputs.pairs is not None
    tokenizer = Tokenizer.load(inputs.pairs.tokenizer)
    bounds = Bounds(inputs.pairs.context_tokens, config.max_length_ratio, config.accept_score)
    counts, rows = Counts(), []
    for outcome in outcomes:
        if isinstance(outcome, EndpointError):
            counts.add_refused()
            continue
        counts.add(outcome)
        if outcome.accepted is None:
            continue
        judged = outcome.judgements[-1], outcome.judgements[0]
        decision = decide(outcome.accepted, outcome.draft, judged, tokenizer, bounds)
        counts.gate[decision.refused or "kept"] += 1
        if decision.refused is None:
            rows.append(pair_row(outcome, outcome.accepted, decision, soul))
    _write_lines(inputs.output / "pairs.jsonl", rows)
    lengths = [[row[side]["trained_tokens"] for row in rows] for side in ("chosen", "rejected")]
    return counts.metrics() | {"pairs": len(rows), "length_cohens_d": cohens_d(*lengths)}


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
