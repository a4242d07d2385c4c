"""Downloaded benchmarks as artifacts: checked and imported where the run starts, so that a fault is told before hours
of training, and so that later stages need no path.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from artifacts.build import Build, Stage
from nanocode.config import EvaluationConfig
from nanocode.evaluation.benchmarks import file_sha256
from nanocode.evaluation.core.bundle import read_bundle
from nanocode.evaluation.human_eval.problems import read_problems
from steps.pipeline.run import Run


def import_benchmarks(run: Run) -> dict[str, str]:
    """The record digests of the benchmarks that the config names, by name: none by default.

    Raises BenchmarkError for files that cannot be used.
    """
    return {name: import_benchmark(run, name) for name in benchmark_paths(run.config.evaluation)}


def benchmark_paths(config: EvaluationConfig) -> dict[str, str]:
    """Those that the config sets, as it names them."""
    paths = {"core": config.core_bundle, "human_eval": config.human_eval}
    return {name: path for name, path in paths.items() if path is not None}


def benchmark_artifact(run: Run, name: str) -> str:
    """What a benchmark's record is called."""
    return run.name(f"benchmark-{name.replace('_', '-')}")


def import_benchmark(run: Run, name: str) -> str:
    """One benchmark's files as a record; a relative path is counted from the project's folder."""
    path = run.root / Path(benchmark_paths(run.config.evaluation)[name]).expanduser()
    folder, names = _core_files(run, path) if name == "core" else _problem_file(path)
    files = {each: file_sha256(folder / each) for each in names}

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import import_benchmark as stage

        return stage.run(folder, files, making.output)

    return run.make(
        Stage(
            "import_benchmark", "benchmark", benchmark_artifact(run, name), "steps.import_benchmark", {"files": files}
        ),
        produce,
    )


def _core_files(run: Run, folder: Path) -> tuple[Path, tuple[str, ...]]:
    """All that the bundle's own list of tasks needs, and that every task has rows enough for what is asked."""
    bundle = read_bundle(folder)
    for task in bundle.tasks:
        task.first(run.config.evaluation.core_examples_per_task)
    return folder, bundle.files


def _problem_file(path: Path) -> tuple[Path, tuple[str, ...]]:
    read_problems(path)
    return path.parent, (path.name,)
