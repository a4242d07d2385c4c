"""The evaluation's suites for one contestant: a trained model, or a model behind an endpoint, on the same tasks.

The tasks, the loop, the tools, the sandbox and the counting are those of the pipeline's evaluation stage.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from nanocode.agent.sandbox import Sandbox
from nanocode.agent.session import Responder
from nanocode.config import EvaluationConfig
from nanocode.constitution.soul import Soul
from nanocode.evaluation.adherence import episode_adherence
from nanocode.evaluation.agent_tasks import Episode, run_tasks, summarise, work_on
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.task import Task

if TYPE_CHECKING:
    from nanocode.inference.engine import Engine

Suite = Literal["agent", "soul", "bits-per-byte"]
Decoding = Literal["greedy", "sampled"]
SUITES: tuple[Suite, ...] = get_args(Suite)
DECODINGS: tuple[Decoding, ...] = get_args(Decoding)
Heard = Callable[[Episode], None]


@dataclass(frozen=True)
class Questions:
    """What everybody is asked: how many held-out tasks, from which seed, under which bounds, how often, and how."""

    config: EvaluationConfig
    soul: Soul
    suites: frozenset[Suite]
    decodings: tuple[Decoding, ...]

    @property
    def episodes(self) -> int:
        """How many tasks are worked on in all; 0 when no suite needs any."""
        return self.config.tasks * len(self.decodings) if self.suites & {"agent", "soul"} else 0

    def temperature(self, decoding: Decoding) -> float:
        """Of sampling; greedy is 0."""
        return 0.0 if decoding == "greedy" else self.config.sampled_temperature


class Contestant(Protocol):
    """Somebody who works on tasks."""

    def work(self, tasks: Sequence[Task], temperature: float, config: EvaluationConfig, heard: Heard) -> list[Episode]:
        """One episode a task, in their order."""


@dataclass(frozen=True)
class EngineContestant:
    """A trained model: all tasks at once, one batch a turn."""

    engine: Engine

    def work(self, tasks: Sequence[Task], temperature: float, config: EvaluationConfig, heard: Heard) -> list[Episode]:
        """As the evaluation stage does it."""
        return run_tasks(
            self.engine,
            tasks,
            temperature=temperature,
            max_turns=config.max_turns,
            max_new_tokens=config.max_new_tokens,
            seed=config.seed,
            heard=heard,
        )


@dataclass(frozen=True)
class RemoteContestant:
    """A model behind an endpoint: `concurrency` tasks at a time. `responder` makes one from temperature and bounds."""

    responder: Callable[[float, EvaluationConfig], Responder]
    concurrency: int

    def work(self, tasks: Sequence[Task], temperature: float, config: EvaluationConfig, heard: Heard) -> list[Episode]:
        """Raises what the responder raises, at the first task that meets it; those not begun are not begun."""
        sandbox, responder = Sandbox(), self.responder(temperature, config)

        def one(task: Task) -> Episode:
            episode = work_on(task, responder, sandbox, config.max_turns)
            heard(episode)
            return episode

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="task") as pool:
            futures = [pool.submit(one, task) for task in tasks]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise


def agent_figures(contestant: Contestant, questions: Questions, heard: Heard) -> dict[str, Any]:
    """By decoding, what the evaluation stage records: rates with n and interval, and adherence to the SOUL."""
    if not questions.episodes:
        return {}
    tasks = sample_tasks("eval", questions.config.tasks, questions.config.seed)
    found: dict[str, Any] = {}
    for decoding in questions.decodings:
        temperature = questions.temperature(decoding)
        episodes = contestant.work(tasks, temperature, questions.config, heard)
        found[decoding] = {"temperature": temperature, **_figures(episodes, questions)}
    return found


def _figures(episodes: Sequence[Episode], questions: Questions) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if "agent" in questions.suites:
        figures |= summarise(episodes).to_json()
    if "soul" in questions.suites:
        adherence, broken = episode_adherence(episodes, questions.soul)
        figures |= {"soul": adherence.to_json(), "principles_broken": broken}
    return figures
