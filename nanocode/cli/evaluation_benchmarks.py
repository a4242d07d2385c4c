"""`nanocode eval --suite core,human-eval`: downloaded benchmarks, from a path or out of a model's lineage."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from nanocode.cli.context import open_repository
from nanocode.cli.counting import counting
from nanocode.cli.evaluation_sources import recorded_figures, recorded_inputs

if TYPE_CHECKING:
    from nanocode.cli.model_loading import Found, LoadedModel
    from nanocode.evaluation.core.bundle import Bundle
    from nanocode.evaluation.function_calls import CallQuestion
    from nanocode.evaluation.function_calls_asking import FunctionCaller
    from nanocode.evaluation.human_eval.figures import Completer, Way
    from nanocode.evaluation.human_eval.problems import Problem

PANEL = "Downloaded benchmarks"


@dataclass(frozen=True)
class Asking:
    """What was asked for at the command line; None leaves it to the record, and without one to the default."""

    suites: frozenset[str]
    core_bundle: Path | None = None
    core_examples: int | None = None
    human_eval: Path | None = None
    samples: int | None = None
    temperature: float | None = None
    way: Way | None = None
    bfcl: Path | None = None
    bfcl_questions: int | None = None


@dataclass(frozen=True)
class Benchmarks:
    """The questions, read and checked. Any may be left out."""

    bundle: Bundle | None = None
    examples: int | None = None
    problems: Sequence[Problem] = ()
    samples: int = 1
    temperature: float = 0.0
    way: Way | None = None
    calls: Sequence[CallQuestion] = ()


@contextmanager
def benchmarks_asked(asking: Asking, found: Found | None, store: str | None) -> Iterator[Benchmarks]:
    """The questions that are asked for, those of the model's own evaluation where no path names others.

    Raises BadParameter where there are none to take, BenchmarkError and FunctionCallsError for files that cannot be
    used, ArtifactError.
    """
    recorded = {} if found is None else recorded_figures(found.folder)
    with tempfile.TemporaryDirectory(prefix="nanocode-eval-") as folder:
        asked: dict[str, Any] = {}
        if "core" in asking.suites:
            from nanocode.evaluation.core.bundle import read_bundle

            path = asking.core_bundle or _recorded(found, store, "core", "--core-bundle", Path(folder))
            on_record = recorded.get("core", {}).get("examples_per_task")
            examples = on_record if asking.core_examples is None else asking.core_examples
            asked |= {"bundle": read_bundle(path), "examples": examples}
        if "human-eval" in asking.suites:
            from nanocode.evaluation.human_eval.problems import read_problems

            path = asking.human_eval or _recorded(found, store, "human_eval", "--human-eval", Path(folder))
            (file,) = path.iterdir() if path.is_dir() else [path]
            asked |= {"problems": read_problems(file), **_how_often(asking, recorded.get("human_eval", {}))}
        if "bfcl" in asking.suites:
            from nanocode.evaluation.function_calls import read_questions

            if asking.bfcl is None:
                raise typer.BadParameter("say where its questions are", param_hint="--bfcl")
            asked["calls"] = read_questions(asking.bfcl, asking.bfcl_questions)
        yield Benchmarks(**asked)


def own_figures(console: Console, loaded: LoadedModel, asked: Benchmarks, seed: int) -> dict[str, Any]:
    """What the evaluation stage records of a trained model."""
    figures: dict[str, Any] = {}
    if asked.bundle is not None:
        from nanocode.evaluation.core.figures import core_figures
        from nanocode.evaluation.core.scoring import ModelScorer

        scorer = ModelScorer(loaded.model, loaded.engine.tokenizer)
        with counting(console, loaded.found.label, asked.bundle.items(asked.examples), "items of CORE") as heard:
            figures["core"] = core_figures(scorer, asked.bundle, asked.examples, heard).to_json()
    if asked.problems:
        from nanocode.evaluation.human_eval.engine import EngineCompleter

        completer = EngineCompleter(loaded.engine, asked.way or "agent")
        figures |= programs(console, loaded.found.label, completer, asked, seed)
    if asked.calls:
        from nanocode.evaluation.function_calls_asking import EngineFunctionCaller

        figures |= function_calls(console, loaded.found.label, EngineFunctionCaller(loaded.engine), asked, seed)
    return figures


def function_calls(console: Console, name: str, caller: FunctionCaller, asked: Benchmarks, seed: int) -> dict[str, Any]:
    """BFCL of anybody who can call functions."""
    from nanocode.evaluation.function_calls import call_figures

    with counting(console, name, len(asked.calls), "function calls") as heard:
        return {"bfcl": call_figures(asked.calls, caller.replies(asked.calls, seed, heard))}


def programs(console: Console, name: str, completer: Completer, asked: Benchmarks, seed: int) -> dict[str, Any]:
    """HumanEval of anybody who can be asked for programs."""
    from nanocode.evaluation.human_eval.figures import human_eval_figures

    with counting(console, name, len(asked.problems) * asked.samples, "programs") as heard:
        found = human_eval_figures(
            completer, asked.problems, samples=asked.samples, temperature=asked.temperature, seed=seed, heard=heard
        )
    return {"human_eval": found.to_json()}


def _recorded(found: Found | None, store: str | None, name: str, option: str, folder: Path) -> Path:
    """The benchmark's files as the model's own evaluation read them, verified."""
    if found is None or not found.digest:
        raise typer.BadParameter(
            "say where its files are: there is no release whose evaluation had them", param_hint=option
        )
    repository = open_repository(store)
    digest = recorded_inputs(repository, found).get(f"benchmark.{name}")
    if digest is None:
        raise typer.BadParameter(
            f"say where its files are: {found.label} was evaluated without them", param_hint=option
        )
    return repository.materialise(digest, folder / name)


def _how_often(asking: Asking, recorded: Mapping[str, Any]) -> dict[str, Any]:
    samples = asking.samples or recorded.get("samples", 1)
    temperature = recorded.get("temperature", 0.0) if asking.temperature is None else asking.temperature
    if samples > 1 and temperature == 0:
        raise typer.BadParameter(
            "greedy samples are all the same: add --human-eval-temperature", param_hint="--human-eval-samples"
        )
    return {"samples": samples, "temperature": temperature, "way": asking.way}
