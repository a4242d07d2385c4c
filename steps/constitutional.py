"""What the stages that ask endpoints share: ledger, accounts, clients, the critic's calibration, a bounded number of
tasks at a time, and how such a stage ends.

A task is one conversation on its way through the loop (`nanocode.constitution.rollout`). Requests finish in any order,
the output is in task order. Finished requests are in the ledger: a stage that is killed and started again with the same
ledger asks only for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanocode.config import ConstitutionConfig, DecontaminationConfig
from nanocode.constitution.accounts import Accounts, Budget
from nanocode.constitution.asking import Asking, ask_critic
from nanocode.constitution.calibration import calibrate
from nanocode.constitution.clients import Clients, open_clients
from nanocode.constitution.earlier import EarlierAnswers, Source
from nanocode.constitution.endpoint import ReplyError
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.output import Decontaminated, InOrder, Sink
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.prompts import PARTS, RULES_MODEL
from nanocode.constitution.rollout import Rollout
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation
from nanocode.data.evaluation_sets import overlap_index
from nanocode.serving.teacher_process import TeacherServer
from nanocode.stopping import Interrupted

# A stage gives up early when at least this share of at least so many finished tasks got no answer.
BREAKER_SHARE, BREAKER_TASKS = 0.5, 10

Work = Callable[[Clients], Awaitable[Rollout]]


@dataclass(frozen=True)
class Asked:
    """Who is asked and where things are kept. `earlier` are ledgers to look into before an endpoint is asked."""

    step: str
    config: ConstitutionConfig
    seed: int
    soul: Path
    output: Path
    ledger: Path
    budget: Budget
    environment: Mapping[str, str]
    earlier: Sequence[Source] = ()
    decontamination: DecontaminationConfig = field(default_factory=DecontaminationConfig)


@dataclass(frozen=True)
class Watching:
    """`report` is told (finished, all) after each task; `should_stop` is asked before each; `say` hears what somebody
    should know.
    """

    report: Callable[[int, int], None] = lambda done, total: None
    should_stop: Callable[[], bool] = lambda: False
    say: Callable[[str], None] = lambda line: None


def carry_out(
    asked: Asked, tasks: Iterable[Work], total: int, soul: Soul, sink: Sink, watching: Watching
) -> dict[str, Any]:
    """Do all `tasks`, of which there are `total`; writes ``calibration.json``, what `sink` writes and ``report.json``.

    What an assistant repeats of an evaluation is dropped. Returns the metrics that ``report.json`` holds. Raises
    SourceError for an evaluation set that is not the pinned one, EndpointError when tasks were lost to an endpoint that
    may recover (a second start asks for those alone) or when no request has a chance (wrong key, unknown model),
    BudgetError at the limit, CalibrationError for a critic that cannot judge, Interrupted when stopped, LedgerError,
    TeacherError.
    """
    asked.output.mkdir(parents=True, exist_ok=True)
    overlap = overlap_index(asked.decontamination)
    if overlap is not None and asked.decontamination.action == "drop":
        sink = Decontaminated(sink, overlap, asked.decontamination.min_coverage)
    with ExitStack() as stack:
        base_urls = _base_urls(asked.config, asked.soul, stack)
        ledger = stack.enter_context(Ledger(asked.ledger))
        prices = prices_of(asked.config)
        accounts = stack.enter_context(Accounts(accounts_path(ledger.path), ledger, prices, asked.budget))
        if accounts.lost:
            bill = (
                "" if accounts.lost_charge.usd == 0 else f"; they may be billed twice ({accounts.lost_charge} at most)"
            )
            watching.say(f"{asked.step}: {accounts.lost} requests were under way at a kill and are asked again{bill}")
        earlier = stack.enter_context(EarlierAnswers(asked.earlier))
        if len(earlier):
            watching.say(f"{asked.step}: {len(earlier):,} answers of other attempts and runs are looked into first")
        stage = _Stage(asked, total, soul, accounts, watching)
        asyncio.run(stage.do_all(tasks, base_urls, ledger, earlier, sink))
    metrics = sink.finish()
    _write_json(asked.output / "report.json", metrics)
    return metrics


def sampling_seed(seed: int, name: str) -> int:
    """The sampling seed of all requests of the task with that name: 31 bits, so that every endpoint takes it."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:4], "big") >> 1


def share_of_budget(config: ConstitutionConfig, tasks: int) -> Budget:
    """What a stage with that many tasks may spend: limits are of all data, and stages do not know of each other."""
    restyled = sum(source.max_rows or 0 for source in config.sources if source.restyle)
    share = tasks / (config.sft_tasks + config.preference_tasks + restyled)
    limits = [f"constitution.{name}" for name in ("max_usd", "max_tokens") if getattr(config, name) is not None]
    return Budget(
        None if config.max_usd is None else config.max_usd * share,
        None if config.max_tokens is None else int(config.max_tokens * share),
        f"raise {' or '.join(limits)}, of which {share:.0%} is this stage's share, and start again to go on",
    )


def accounts_path(ledger: Path) -> Path:
    """The file beside a ledger that knows what was reserved and what failed."""
    return ledger.with_suffix(".accounts")


class _Stage:
    """Does tasks, a bounded number at a time."""

    def __init__(self, asked: Asked, total: int, soul: Soul, accounts: Accounts, watching: Watching) -> None:
        self._asked, self._config, self._total = asked, asked.config, total
        self._soul, self._accounts, self._watching = soul, accounts, watching
        self._finished = 0
        self._lost: list[EndpointError] = []

    async def do_all(
        self,
        tasks: Iterable[Work],
        base_urls: Mapping[str, str],
        ledger: Ledger,
        earlier: EarlierAnswers,
        sink: Sink,
    ) -> None:
        """Give `sink` one outcome a task, in task order; None stands for one that an endpoint refused for good."""
        pending, ordered = iter(enumerate(tasks)), InOrder(sink.take)
        environment, seed = self._asked.environment, self._asked.seed
        async with open_clients(self._config, base_urls, environment, ledger, self._accounts, seed, earlier) as clients:
            await self._calibrate(clients)

            async def worker() -> None:
                for index, task in pending:
                    if self._watching.should_stop() or self._is_hopeless():
                        return
                    ordered.put(index, await self._one(task, clients))
                    self._watching.report(self._finished, self._total)

            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self._config.concurrency):
                        group.create_task(worker())
            except ExceptionGroup as errors:
                raise errors.exceptions[0] from None
        self._raise_unless_complete()

    async def _calibrate(self, clients: Clients) -> None:
        """Hold the critic to the probes, and write down how it did; a rule is held to them by the tests instead."""
        critic, least = self._config.critic, self._config.calibration_auc
        if critic.model == RULES_MODEL or least == 0:
            why = "the critic is made of rules" if least else "constitution.calibration_auc is 0"
            found: dict[str, Any] = {"auc": None, "not_asked": why}
        else:

            async def score(conversation: Conversation, sample: str) -> int | None:
                try:
                    asking = Asking(sample, self._asked.seed)
                    reply = await ask_critic(clients.critic, conversation, self._soul, asking)
                except ReplyError:
                    return None
                return None if reply is None else reply.score

            found = (await calibrate(critic.model, score, least, self._soul.ids)).to_json()
        _write_json(self._asked.output / "calibration.json", found)

    async def _one(self, task: Work, clients: Clients) -> Rollout | None:
        try:
            return await task(clients)
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

    def _raise_unless_complete(self) -> None:
        finished, total = self._finished, self._total
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


def _base_urls(config: ConstitutionConfig, soul: Path, stack: ExitStack) -> dict[str, str]:
    """The address of each part; the embedded teacher, started once, for those that name none."""
    given: dict[str, str] = {part: getattr(config, part).base_url for part in PARTS}
    if all(given.values()):
        return given
    teacher = stack.enter_context(TeacherServer(soul))
    return {part: url or teacher for part, url in given.items()}


def _write_json(path: Path, values: Mapping[str, Any]) -> None:
    text = json.dumps(values, indent=2, sort_keys=True, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")
