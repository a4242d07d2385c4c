"""Stage: constitutional data. Tasks in; conversations for SFT or preference pairs out, with their provenance.

A stage works on one shard of one split. Requests finish in any order, the output is in task order. Finished requests
are in the ledger: a stage that is killed and started again with the same ledger folder asks only for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.config import ConstitutionConfig
from nanocode.constitution.accounts import Accounts, Budget
from nanocode.constitution.asking import Asking, ask_critic
from nanocode.constitution.calibration import calibrate
from nanocode.constitution.clients import Clients, open_clients, prices_of
from nanocode.constitution.endpoint import ReplyError
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.gate import Bounds
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.output import ConversationFile, InOrder, PairFile, Sink
from nanocode.constitution.prompts import PARTS, RULES_MODEL
from nanocode.constitution.rollout import Rollout, Settings, roll_out
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation
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
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Write ``conversations.jsonl`` (split sft) or ``pairs.jsonl`` (preference), ``report.json``, ``calibration.json``.

    `report` is told (finished, all) after each task; `should_stop` is asked before each; `say` hears what somebody
    should know. Returns the metrics that ``report.json`` holds. Raises EndpointError when tasks were lost to an
    endpoint that may recover (a second start asks for those alone) or when no request has a chance (wrong key, unknown
    model), BudgetError at the limit, CalibrationError for a critic that cannot judge, Interrupted when stopped,
    SoulError, LedgerError, TeacherError.
    """
    if inputs.split == "preference" and inputs.pairs is None:
        raise ValueError("preference pairs are gated on token ids: give inputs.pairs (tokenizer and context_tokens)")
    soul = Soul.load(inputs.soul)
    tasks = shard_of_tasks(config, seed, inputs)
    inputs.output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        base_urls = _base_urls(config, inputs.soul, stack)
        ledger = stack.enter_context(Ledger(_ledger_path(inputs)))
        budget = share_of_budget(config, len(tasks))
        accounts = stack.enter_context(Accounts(accounts_path(ledger.path), ledger, prices_of(config), budget))
        if accounts.lost:
            bill = (
                "" if accounts.lost_charge.usd == 0 else f"; they may be billed twice ({accounts.lost_charge} at most)"
            )
            say(f"generate_rollouts: {accounts.lost} requests were under way at a kill and are asked again{bill}")
        sink = _sink(config, soul, inputs)
        stage = _Stage(config, seed, inputs, soul, accounts, report, should_stop)
        asyncio.run(stage.roll_out_all(tasks, base_urls, ledger, sink))
    metrics = sink.finish()
    text = json.dumps(metrics, indent=2, sort_keys=True, ensure_ascii=False)
    (inputs.output / "report.json").write_text(text + "\n", encoding="utf-8")
    return metrics


def share_of_budget(config: ConstitutionConfig, tasks: int) -> Budget:
    """What a stage with that many tasks may spend: limits are of all data, and stages do not know of each other."""
    share = tasks / (config.sft_tasks + config.preference_tasks)
    limits = [f"constitution.{name}" for name in ("max_usd", "max_tokens") if getattr(config, name) is not None]
    return Budget(
        None if config.max_usd is None else config.max_usd * share,
        None if config.max_tokens is None else int(config.max_tokens * share),
        f"raise {' or '.join(limits)}, of which {share:.0%} is this stage's share, and start again to go on",
    )


def accounts_path(ledger: Path) -> Path:
    """The file beside a ledger that knows what was reserved and what failed."""
    return ledger.with_suffix(".accounts")


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
        accounts: Accounts,
        report: Callable[[int, int], None],
        should_stop: Callable[[], bool],
    ) -> None:
        self._config, self._seed, self._inputs, self._soul = config, seed, inputs, soul
        self._accounts, self._report, self._should_stop = accounts, report, should_stop
        self._finished = 0
        self._lost: list[EndpointError] = []

    async def roll_out_all(self, tasks: list[Task], base_urls: Mapping[str, str], ledger: Ledger, sink: Sink) -> None:
        """Give `sink` one outcome a task, in task order; None stands for one that an endpoint refused for good."""
        pending, ordered = iter(enumerate(tasks)), InOrder(sink.take)
        environment = self._inputs.environment
        async with open_clients(self._config, base_urls, environment, ledger, self._accounts, self._seed) as clients:
            await self._calibrate(clients)

            async def worker() -> None:
                for index, task in pending:
                    if self._should_stop() or self._is_hopeless():
                        return
                    ordered.put(index, await self._one(task, clients))
                    self._report(self._finished, len(tasks))

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._config.concurrency):
                        group.create_task(worker())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        self._raise_unless_complete(len(tasks))

    async def _calibrate(self, clients: Clients) -> None:
        """Hold the critic to the probes, and write down how it did; a rule is held to them by the tests instead."""
        critic, least = self._config.critic, self._config.calibration_auc
        if critic.model == RULES_MODEL or least == 0:
            why = "the critic is made of rules" if least else "constitution.calibration_auc is 0"
            found: dict[str, Any] = {"auc": None, "not_asked": why}
        else:

            async def score(conversation: Conversation, sample: str) -> int | None:
                try:
                    reply = await ask_critic(clients.critic, conversation, self._soul, Asking(sample, self._seed))
                except ReplyError:
                    return None
                return None if reply is None else reply.score

            found = (await calibrate(critic.model, score, least, self._soul.ids)).to_json()
        text = json.dumps(found, indent=2, sort_keys=True, ensure_ascii=False)
        (self._inputs.output / "calibration.json").write_text(text + "\n", encoding="utf-8")

    async def _one(self, task: Task, clients: Clients) -> Rollout | None:
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
            return None
        finally:
            self._finished += 1

    def _is_hopeless(self) -> bool:
        """Whether there is no point in starting another task; those under way go on, for they are paid for."""
        return any(error.fatal for error in self._lost) or self._breaker_is_open()

    def _breaker_is_open(self) -> bool:
        return len(self._lost) >= BREAKER_TASKS and len(self._lost) >= BREAKER_SHARE * self._finished

    def _raise_unless_complete(self, total: int) -> None:
        finished = self._finished
        for error in self._lost:
            if error.fatal:
                raise error
        if self._breaker_is_open():
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


def _sink(config: ConstitutionConfig, soul: Soul, inputs: Inputs) -> Sink:
    if inputs.split == "sft":
        return ConversationFile(inputs.output, soul)
    assert inputs.pairs is not None
    bounds = Bounds(inputs.pairs.context_tokens, config.max_length_ratio, config.accept_score)
    return PairFile(inputs.output, soul, Tokenizer.load(inputs.pairs.tokenizer), bounds)
