"""CORE of one model: accuracy of each task, centred on chance, and the mean over the tasks.

centred = (accuracy - baseline) / (1 - baseline); CORE is their plain mean, and may be negative. Multiple choice and
schema: right when the gold option has the highest mean log-probability, the first of equals. Language modelling: right
when every token of the continuation is the model's first choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from nanocode.evaluation.core.bundle import Bundle, CoreTask
from nanocode.evaluation.core.prompts import prompts_of
from nanocode.evaluation.core.scoring import Score, Scorer
from nanocode.evaluation.intervals import Rate

# DCLM's second table of baselines (mlfoundations/dclm#114, pull request 115) has these in place of the first's .2, .2
# and .091. The bundle in circulation holds the first table, and published figures rest on it.
CORRECTED_BASELINES = {"commonsense_qa": 0.403, "agi_eval_lsat_ar": 0.25, "bigbench_language_identification": 0.25}

_ITEMS_AT_ONCE = 128


@dataclass(frozen=True)
class Outcome:
    """One item: which option the model found likeliest, and whether that is right. `cut`: its context was too long.

    An item of language modelling has one option; 0 is chosen when the model would have written it.
    """

    chosen: int | None
    is_right: bool
    cut: bool


@dataclass(frozen=True)
class TaskResult:
    """A task's outcomes, in the order of its items."""

    task: CoreTask
    outcomes: tuple[Outcome, ...]

    @property
    def accuracy(self) -> Rate:
        return Rate(sum(outcome.is_right for outcome in self.outcomes), len(self.outcomes))

    def to_json(self) -> dict[str, Any]:
        baseline = self.task.baseline
        return {
            **self.accuracy.to_json(),
            "baseline": baseline,
            "centred": centred(self.accuracy.value, baseline),
            "type": self.task.kind,
            "examples_shown": self.task.shots,
            "cut": sum(outcome.cut for outcome in self.outcomes),
        }


@dataclass(frozen=True)
class CoreFigures:
    """The results of all tasks of a bundle, or of the first `examples_per_task` items of each."""

    bundle: Bundle
    examples_per_task: int | None
    results: tuple[TaskResult, ...]

    def to_json(self) -> dict[str, Any]:
        """For ``metrics.json``: `core` with its 95 % interval, `core_v2` by the corrected baselines, and each task."""
        corrected = {
            each.task.label: CORRECTED_BASELINES.get(each.task.label, each.task.baseline) for each in self.results
        }
        low, high = interval([(each.accuracy, each.task.baseline) for each in self.results])
        return {
            "core": mean_centred([(each.accuracy.value, each.task.baseline) for each in self.results]),
            "low": low,
            "high": high,
            "core_v2": mean_centred([(each.accuracy.value, corrected[each.task.label]) for each in self.results]),
            "examples_per_task": self.examples_per_task,
            "bundle": self.bundle.digest,
            "tasks": {each.task.label: each.to_json() for each in self.results},
        }

    def rows(self) -> Iterator[dict[str, Any]]:
        """One row an item, for the audit."""
        for each in self.results:
            for number, outcome in enumerate(each.outcomes):
                yield {"task": each.task.label, "item": number, **asdict(outcome)}


def core_figures(
    scorer: Scorer,
    bundle: Bundle,
    examples_per_task: int | None = None,
    heard: Callable[[int], None] = lambda items: None,
    known: Mapping[str, tuple[Outcome, ...]] | None = None,
    finished: Callable[[TaskResult], None] = lambda result: None,
) -> CoreFigures:
    """Ask all of CORE, or the first `examples_per_task` items of each task; `heard` is told of so many more items.

    `known` are outcomes by task from an interrupted run, which are not asked again; `finished` is told of each task
    that was. What `heard` and `finished` raise ends it. Raises BenchmarkError when a task has too few items.
    """
    tasks = [task.first(examples_per_task) for task in bundle.tasks]
    results = []
    for task in tasks:
        outcomes = (known or {}).get(task.label)
        if outcomes is None:
            result = TaskResult(task, tuple(_outcomes(scorer, task, heard)))
            finished(result)
        else:
            result = TaskResult(task, outcomes)
            heard(len(outcomes))
        results.append(result)
    return CoreFigures(bundle, examples_per_task, tuple(results))


def centred(accuracy: float, baseline: float) -> float:
    """0 is chance, 1 is perfect."""
    return (accuracy - baseline) / (1 - baseline)


def mean_centred(found: list[tuple[float, float]]) -> float:
    """CORE of pairs of accuracy and baseline."""
    return sum(centred(accuracy, baseline) for accuracy, baseline in found) / len(found)


def interval(found: list[tuple[Rate, float]]) -> tuple[float, float]:
    """95 % interval of CORE from those of the accuracies (square-and-add: Zou and Donner, 2008)."""
    below = above = 0.0
    for rate, baseline in found:
        low, high = rate.interval
        below += (centred(rate.value, baseline) - centred(low, baseline)) ** 2
        above += (centred(high, baseline) - centred(rate.value, baseline)) ** 2
    mean = mean_centred([(rate.value, baseline) for rate, baseline in found])
    return mean - math.sqrt(below) / len(found), mean + math.sqrt(above) / len(found)


def _outcomes(scorer: Scorer, task: CoreTask, heard: Callable[[int], None]) -> Iterator[Outcome]:
    """Some items at a time: their options fill batches, and a stop or a progress bar need not wait for all of them."""
    for first in range(0, len(task.items), _ITEMS_AT_ONCE):
        numbers = range(first, min(first + _ITEMS_AT_ONCE, len(task.items)))
        prompts = {
            number: prompts_of(task, number, scorer.encode, scorer.bos, scorer.context_tokens) for number in numbers
        }
        scores = iter(scorer.score([prompt for number in numbers for prompt in prompts[number]]))
        for number in numbers:
            options = [next(scores) for _ in prompts[number]]
            yield _outcome(task, number, options, any(prompt.cut for prompt in prompts[number]))
        heard(len(numbers))


def _outcome(task: CoreTask, number: int, options: list[Score], cut: bool) -> Outcome:
    if not all(math.isfinite(option.log_probability) for option in options):
        raise ValueError(f"{task.label}: the model has no finite log-probability for item {number}: it is damaged")
    if task.kind == "language_modeling":
        return Outcome(0 if options[0].is_greedy else None, options[0].is_greedy, cut)
    chosen = max(range(len(options)), key=lambda option: options[option].log_probability)
    return Outcome(chosen, chosen == task.items[number].gold, cut)
