"""HumanEval: how often a model's programs pass the tests of a problem, asked in one of three ways.

``completion``: the prompt is continued, as the paper does it; for base models. ``chat``: a message asks for the whole
function, which is taken from the reply's code. ``agent``: the prompt stands in a file of a workspace and the model
completes it with its tools; for models that were trained on those. Figures of different ways are different figures, so
each says which it is. Programs are judged in the sandbox (`nanocode.evaluation.human_eval.execution`).
"""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, Protocol, get_args

from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.human_eval.execution import Judge, Judgement
from nanocode.evaluation.human_eval.problems import Problem
from nanocode.evaluation.pass_at_k import mean_over_problems, pass_at_k, pass_hat_k

Way = Literal["completion", "chat", "agent"]
WAYS: tuple[Way, ...] = get_args(Way)
Fault = Literal["", "no code", "context", "malformed"]

KS = (1, 10, 100)
MAX_NEW_TOKENS = 512
MAX_WORKERS = 8
KEPT_TOGETHER, KEPT_SHARE = 32, 10
_TYPE_CHARACTERS = 40


@dataclass(frozen=True)
class Asked:
    """How often each problem is asked, and how."""

    samples: int = 1
    temperature: float = 0.0
    seed: int = 0
    max_new_tokens: int = MAX_NEW_TOKENS

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"samples must be at least 1, not {self.samples}")
        if self.samples > 1 and self.temperature == 0:
            raise ValueError(f"{self.samples} samples at temperature 0 are one sample: ask for one, or for temperature")


@dataclass(frozen=True)
class Answer:
    """What a model made of a problem: its words, and the program in them. Without one, ``fault`` says why: ``no code``,
    a prompt too long for the ``context``, or a ``malformed`` reply. ``tokens`` None: nobody has counted.
    """

    text: str
    program: str
    fault: Fault = ""
    detail: str = ""
    tokens: int | None = None


class Completer(Protocol):
    """A model, asked in one way."""

    @property
    def way(self) -> Way: ...

    def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
        """Every sample of the first problem, then of the second, and so on, without the ``first`` ones. What a sample
        is does not depend on where one begins.
        """


@dataclass(frozen=True)
class Seconds:
    """What was waited for answers, and for judgements behind the last answer."""

    answering: float
    judging: float


@dataclass(frozen=True)
class HumanEval:
    """Figures, the rows behind them (one a sample), and how long it took, which is no figure: it differs each time."""

    way: Way
    asked: Asked
    rows: Sequence[dict[str, Any]]
    seconds: Seconds

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; every k at which there are samples enough."""
        passed: Counter[str] = Counter()
        for row in self.rows:
            passed[row["task_id"]] += row["outcome"] == "passed"
        counts, samples = list(passed.values()), self.asked.samples
        figures: dict[str, Any] = {"way": self.way, **vars(self.asked), "problems": len(counts)}
        for k in (k for k in sorted({*KS, samples}) if k <= samples):
            figures[f"pass_at_{k}"] = mean_over_problems(pass_at_k, samples, counts, k).to_json()
            if k > 1:
                figures[f"pass_hat_{k}"] = mean_over_problems(pass_hat_k, samples, counts, k).to_json()
        figures["by_outcome"] = dict(sorted(Counter(map(_outcome, self.rows)).items()))
        tokens = [row["tokens"] for row in self.rows]
        figures["tokens"] = None if None in tokens else sum(tokens)
        return figures


def human_eval_figures(
    completer: Completer,
    problems: Sequence[Problem],
    *,
    samples: int = 1,
    temperature: float = 0.0,
    seed: int = 0,
    max_new_tokens: int | None = None,
    heard: Callable[[int], None] = lambda finished: None,
    known: Sequence[dict[str, Any]] = (),
    keep: Callable[[Sequence[dict[str, Any]]], None] = lambda rows: None,
    judge: Judge | None = None,
    workers: int | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> HumanEval:
    """Ask and judge every problem. Programs are judged while others are still awaited, ``workers`` at once (one a
    processor by default); ``heard`` is told of each that is judged, from any thread. ``known`` are the rows that a run
    which was stopped had handed to ``keep``, which now and then gets all rows so far: the work goes on behind them.

    Raises ValueError for no problems, impossible samples and ``known`` rows of something else, SandboxUnavailable and
    JudgeError where nothing can be judged, and what the completer, ``heard`` and ``keep`` raise.
    """
    asked = Asked(samples, temperature, seed, MAX_NEW_TOKENS if max_new_tokens is None else max_new_tokens)
    if not problems:
        raise ValueError("there are no problems to ask")
    judge = judge or Judge(Sandbox())
    judge.check()
    rows = _checked(known, problems, samples)
    heard(len(rows))
    begun = clock()
    with ThreadPoolExecutor(workers or min(os.cpu_count() or 1, MAX_WORKERS), thread_name_prefix="judge") as pool:
        waiting: deque[Future[dict[str, Any]]] = deque()

        def judged(index: int, answer: Answer) -> dict[str, Any]:
            row = _row(judge, problems[index // samples], index % samples, answer, seed)
            heard(1)
            return row

        try:
            kept = len(rows)
            for index, answer in enumerate(completer.answers(problems, asked, kept), kept):
                waiting.append(pool.submit(judged, index, answer))
                while waiting and waiting[0].done():
                    rows.append(waiting.popleft().result())
                # A share of what there is, so that all that is written stays a few times what there is.
                if len(rows) >= kept + max(KEPT_TOGETHER, kept // KEPT_SHARE):
                    kept = len(rows)
                    keep(rows)
            answered = clock()
            rows += [future.result() for future in waiting]
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    keep(rows)
    if len(rows) != len(problems) * samples:
        raise ValueError(f"{len(rows)} answers to {len(problems)} problems asked {samples} times each")
    return HumanEval(completer.way, asked, rows, Seconds(answered - begun, clock() - answered))


def _checked(known: Sequence[dict[str, Any]], problems: Sequence[Problem], samples: int) -> list[dict[str, Any]]:
    """The rows, when they are the first of these problems."""
    wanted = [(problem.task_id, sample) for problem in problems for sample in range(samples)]
    if [(row["task_id"], row["sample"]) for row in known] != wanted[: len(known)]:
        raise ValueError("the rows that are known already belong to other problems, or to other samples of them")
    return list(known)


def _row(judge: Judge, problem: Problem, sample: int, answer: Answer, seed: int) -> dict[str, Any]:
    found: Judgement | None = None if answer.fault else judge.judge(problem.case(answer.program), seed)
    return {
        "task_id": problem.task_id,
        "sample": sample,
        "outcome": answer.fault if found is None else found.outcome,
        "detail": answer.detail if found is None else found.detail,
        "text": answer.text,
        "program": answer.program,
        "tokens": answer.tokens,
    }


def _outcome(row: dict[str, Any]) -> str:
    """An error with its type."""
    kind = str(row["detail"]).partition(":")[0][:_TYPE_CHARACTERS]
    return f"error: {kind}" if row["outcome"] == "error" else str(row["outcome"])
