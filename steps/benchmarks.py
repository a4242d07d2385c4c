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
from nanocode.evaluation.human_eval.figures import Completer, human_eval_figures
from nanocode.evaluation.human_eval.problems import read_problems
from nanocode.training.progress import Progress
from nanocode.training.stage import Running


def core(config: EvaluationConfig, folder: Path, scorer: Scorer, running: Running, output: Path) -> dict[str, Any]:
    """The figures of CORE; every item's outcome goes into ``core.jsonl``.

    A stage that was stopped or killed goes on behind the last task that it had finished. Raises Interrupted when asked
    to stop, BenchmarkError for a bundle that cannot be used.
    """
    bundle, kept = read_bundle(folder), _Kept(running)
    known = {label: tuple(Outcome(*each) for each in rows) for label, rows in kept.of("core", {}).items()}
    if known:
        running.say(f"evaluate: CORE: {len(known)} tasks were finished before")

    def finished(result: TaskResult) -> None:
        accuracy, label = result.accuracy, result.task.label
        running.say(f"evaluate: CORE: {label}: {accuracy} right, chance {result.task.baseline:.3f}")
        kept.keep("core", {**kept.of("core", {}), label: [list(vars(each).values()) for each in result.outcomes]})

    figures = core_figures(
        scorer,
        bundle,
        config.core_examples_per_task,
        _shown("CORE", bundle.items(config.core_examples_per_task), running),
        known,
        finished,
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

    A stage that was stopped or killed goes on behind the samples that it had kept. Raises Interrupted when asked to
    stop, BenchmarkError for problems that cannot be used, and what judging raises.
    """
    (file,) = sorted(folder.iterdir())
    problems, kept = read_problems(file), _Kept(running)
    found = human_eval_figures(
        completer,
        problems,
        samples=config.human_eval_samples,
        temperature=config.human_eval_temperature,
        seed=config.seed,
        heard=_shown("HumanEval", len(problems) * config.human_eval_samples, running),
        known=kept.of("human_eval", []),
        keep=lambda rows: kept.keep("human_eval", list(rows)),
    )
    with (output / "human_eval.jsonl").open("w", encoding="utf-8") as rows:
        rows.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows)
    figures = found.to_json()
    running.say(f"evaluate: HumanEval, {completer.way}: pass@1 {figures['pass_at_1']['rate']:.3f}")
    return figures


class _Kept:
    """What is finished of each benchmark, kept as the stage's checkpoints. A document only grows: its length counts."""

    def __init__(self, running: Running) -> None:
        self._store, self._documents = running.store, dict[str, Any]()
        manifest = None if self._store is None else self._store.latest()
        if self._store is not None and manifest is not None:
            with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
                self._store.restore(manifest, Path(folder))
                for path in Path(folder).iterdir():
                    self._documents[path.stem] = json.loads(path.read_text(encoding="utf-8"))

    def of(self, benchmark: str, none: Any) -> Any:
        """Its document, ``none`` when nothing is kept."""
        return self._documents.get(benchmark, none)

    def keep(self, benchmark: str, document: Any) -> None:
        """Save it with those of the others."""
        self._documents[benchmark] = document
        if self._store is None:
            return
        with tempfile.TemporaryDirectory(prefix="benchmarks-") as folder:
            for name, each in self._documents.items():
                (Path(folder) / f"{name}.json").write_text(json.dumps(each), encoding="utf-8")
            self._store.save(sum(map(len, self._documents.values())), Path(folder), {})
            self._store.prune(1)


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
