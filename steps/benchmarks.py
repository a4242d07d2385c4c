"""Part of the evaluation stage: the downloaded benchmarks, where the config names them."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nanocode.config import EvaluationConfig
from nanocode.evaluation.core.bundle import read_bundle
from nanocode.evaluation.core.figures import Outcome, TaskResult, core_figures
from nanocode.evaluation.core.scoring import Scorer
from nanocode.evaluation.human_eval import Completer, human_eval_figures, read_problems
from nanocode.training.progress import Progress
from nanocode.training.stage import Running

_SAVED = "core.json"


def core(config: EvaluationConfig, folder: Path, scorer: Scorer, running: Running, output: Path) -> dict[str, Any]:
    """The figures of CORE; every item's outcome goes into ``core.jsonl``.

    A stage that was stopped or killed goes on behind the last task that it had finished. Raises Interrupted when asked
    to stop, BenchmarkError for a bundle that cannot be used.
    """
    bundle = read_bundle(folder)
    saved = _Finished(running)
    figures = core_figures(
        scorer,
        bundle,
        config.core_examples_per_task,
        _shown("CORE", bundle.items(config.core_examples_per_task), running),
        saved.outcomes,
        saved.add,
    )
    with (output / "core.jsonl").open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in figures.rows())
    found = figures.to_json()
    running.say(
        f"evaluate: CORE {found['core']:.4f} ({found['low']:.4f}..{found['high']:.4f}), {len(bundle.tasks)} tasks"
    )
    return found


def human_eval(
    config: EvaluationConfig, folder: Path, completer: Completer, running: Running, output: Path
) -> dict[str, Any]:
    """The figures of HumanEval; every program with its verdict goes into ``human_eval.jsonl``.

    Raises Interrupted when asked to stop, BenchmarkError for problems that cannot be used, and what judging raises.
    """
    (file,) = sorted(folder.iterdir())
    problems = read_problems(file)
    found = human_eval_figures(
        completer,
        problems,
        samples=config.human_eval_samples,
        temperature=config.human_eval_temperature,
        seed=config.seed,
        heard=_shown("HumanEval", len(problems) * config.human_eval_samples, running),
    )
    with (output / "human_eval.jsonl").open("w", encoding="utf-8") as rows:
        rows.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows)
    figures = found.to_json()
    running.say(f"evaluate: HumanEval, {completer.way}: pass@1 {figures['pass_at_1']['rate']:.3f}")
    return figures


class _Finished:
    """The outcomes of finished tasks, kept as the stage's checkpoints: one more task, one more step."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self.outcomes: dict[str, tuple[Outcome, ...]] = {}
        manifest = running.store.latest() if running.store is not None else None
        if running.store is not None and manifest is not None:
            with tempfile.TemporaryDirectory(prefix="core-") as folder:
                running.store.restore(manifest, Path(folder))
                saved = json.loads((Path(folder) / _SAVED).read_text(encoding="utf-8"))
            self.outcomes = {label: tuple(Outcome(*each) for each in rows) for label, rows in saved.items()}
            running.say(f"evaluate: CORE: {len(self.outcomes)} tasks were finished before")

    def add(self, result: TaskResult) -> None:
        """Save a task with those before it."""
        accuracy = result.accuracy
        self._running.say(f"evaluate: CORE: {result.task.label}: {accuracy} right, chance {result.task.baseline:.3f}")
        self.outcomes[result.task.label] = result.outcomes
        if self._running.store is None:
            return
        with tempfile.TemporaryDirectory(prefix="core-") as folder:
            rows = {label: [list(vars(each).values()) for each in known] for label, known in self.outcomes.items()}
            (Path(folder) / _SAVED).write_text(json.dumps(rows), encoding="utf-8")
            self._running.store.save(len(self.outcomes), Path(folder), {})
            self._running.store.prune(1)


def _shown(what: str, total: int, running: Running) -> Callable[[int], None]:
    """Counts what is done, says so now and then, and ends the work when the process is asked to stop."""
    progress, lock, done = Progress(f"evaluate: {what}:", total, running.say, unit="item"), threading.Lock(), 0
    progress.update(done)  # from here on it counts, whatever the first step is

    def heard(items: int) -> None:
        nonlocal done
        with lock:
            done += items
            progress.update(done)
        running.pause(f"in {what}")

    return heard
