"""Who is evaluated, and what everybody is asked: a trained model, or a model behind an endpoint, on the same tasks.

The tasks, the loop, the tools, the sandbox and the counting are those of the pipeline's evaluation stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, get_args

from nanocode.agent.sandbox import Sandbox
from nanocode.agent.session import Responder
from nanocode.config import EvaluationConfig
from nanocode.constitution.soul import Soul
from nanocode.evaluation.agent_tasks import Episode, Judge, run_tasks, work_on
from nanocode.tasks.task import Task, check

if TYPE_CHECKING:
    from nanocode.inference.engine import Engine

Suite = Literal["agent", "soul", "bits-per-byte", "micro-swe", "core", "human-eval", "bfcl"]
Decoding = Literal["greedy", "sampled"]
SUITES: tuple[Suite, ...] = get_args(Suite)
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)
Heard = Callable[[Episode], None]


@dataclass(frozen=True)
class Questions:
    """What everybody is asked: how many held-out tasks, from which seed, under which bounds, how often, and how.

    `samples` is how often each task is worked on where decoding is sampled.
    """

    config: EvaluationConfig
    soul: Soul
    suites: frozenset[Suite]
    decodings: tuple[Decoding, ...]
    samples: int = 1

    @property
    def episodes(self) -> int:
        """How many tasks are worked on in all; 0 when no suite needs any."""
        passes = len(self.decodings) + (self.samples - 1) * ("sampled" in self.decodings)
        return self.config.tasks * passes * (self._asks_families + ("micro-swe" in self.suites))

    @property
    def _asks_families(self) -> bool:
        return bool(self.suites & {"agent", "soul"})

    def rounds(self, decoding: Decoding) -> int:
        """How often each task is worked on."""
        return self.samples if decoding == "sampled" else 1

    def temperature(self, decoding: Decoding) -> float:
        """Of sampling; greedy is 0."""
        return 0.0 if decoding == "greedy" else self.config.sampled_temperature


@dataclass(frozen=True)
class Working:
    """How tasks are worked on: decoding, bounds, which of several samples this is, who judges and who is told."""

    temperature: float
    config: EvaluationConfig
    heard: Heard = lambda episode: None
    sample: int = 0
    judge: Judge = field(default=check)


class Contestant(Protocol):
    """Somebody who works on tasks."""

    def work(self, tasks: Sequence[Task], how: Working) -> list[Episode]:
        """One episode a task, in their order."""


@dataclass(frozen=True)
class EngineContestant:
    """A trained model: all tasks at once, one batch a turn."""

    engine: Engine

    def work(self, tasks: Sequence[Task], how: Working) -> list[Episode]:
        """As the evaluation stage does it."""
        return run_tasks(
            self.engine,
            tasks,
            temperature=how.temperature,
            max_turns=how.config.max_turns,
            max_new_tokens=how.config.max_new_tokens,
            seed=how.config.seed,
            heard=how.heard,
            sample=how.sample,
            judge=how.judge,
        )


@dataclass(frozen=True)
class RemoteContestant:
    """A model behind an endpoint: `concurrency` tasks at a time. `responder` makes one from temperature and bounds."""

    responder: Callable[[float, EvaluationConfig], Responder]
    concurrency: int

    def work(self, tasks: Sequence[Task], how: Working) -> list[Episode]:
        """Raises what the responder raises, at the first task that meets it; those not begun are not begun.

        Each sample asks with a seed of its own.
        """
        config = how.config.model_copy(update={"seed": how.config.seed + how.sample})
        sandbox, responder = Sandbox(), self.responder(how.temperature, config)

        def one(task: Task) -> Episode:
            episode = work_on(task, responder, sandbox, config.max_turns, judge=how.judge)
            how.heard(episode)
            return episode

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="task") as pool:
            futures = [pool.submit(one, task) for task in tasks]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def all_rounds(
    contestant: Contestant,
    tasks: Sequence[Task],
    questions: Questions,
    decoding: Decoding,
    heard: Heard,
    judge: Judge = check,
) -> list[list[Episode]]:
    """The episodes of every sample. The first is what one sample alone would be."""
    temperature = questions.temperature(decoding)
    return [
        contestant.work(tasks, Working(temperature, questions.config, heard, sample, judge))
        for sample in range(questions.rounds(decoding))
    ]
