"""Making an artifact by asking endpoints: the ledger around it, its checkpoints, its calls and what it cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.build import Build, Stage
from nanocode.constitution.earlier import Source
from nanocode.constitution.faults import EndpointError
from nanocode.stopping import Interrupted
from steps.pipeline.answers import CALLS, Answers
from steps.pipeline.earlier_answers import earlier_answers
from steps.pipeline.run import Run


@dataclass(frozen=True)
class Asking:
    """What a stage gets: the folder of its ledger, ledgers to look into before, and whom to tell of its progress."""

    ledger_folder: Path
    earlier: Sequence[Source]
    report: Callable[[int, int], None]


def make_by_asking(run: Run, stage: Stage, label: str, produce: Callable[[Build, Asking], Mapping[str, Any]]) -> str:
    """The record of a stage whose requests are checkpointed with it; `label` names it in the progress."""
    opened: list[Answers] = []

    def ask(making: Build) -> Mapping[str, Any]:
        from steps.pipeline.spend import generation_cost  # brings asyncio, which a run from the cache never needs

        answers = Answers(run, making)
        opened.append(answers)
        asking = Asking(answers.folder, earlier_answers(run, making), _reporting(run, answers, label))
        try:
            metrics = produce(making, asking)
        except (Interrupted, EndpointError):
            answers.save()
            raise
        answers.write(making.output / CALLS)
        making.cost.update(generation_cost(answers.folder, run.config.constitution))
        return metrics

    made = run.make(stage, ask)
    for kept in opened:
        kept.forget()
    return made


def _reporting(run: Run, answers: Answers, label: str) -> Callable[[int, int], None]:
    from nanocode.training.progress import Progress

    progress: list[Progress] = []

    def report(done: int, total: int) -> None:
        if not progress:
            progress.append(Progress(label, total, run.say, unit="task"))
        progress[0].update(done)
        answers.save_when_due()

    return report
