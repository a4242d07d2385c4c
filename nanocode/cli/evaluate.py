"""`nanocode eval`: a model's evaluation again, on the tasks that it was evaluated on, alone or beside others."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_args

import typer
from rich.console import Console

from nanocode.cli.context import StoreOption, open_repository, project_root
from nanocode.cli.counting import counting
from nanocode.cli.evaluation_benchmarks import (
    PANEL,
    Asking,
    Benchmarks,
    benchmarks_asked,
    function_calls,
    own_figures,
    programs,
)
from nanocode.cli.evaluation_remote import Remote, remote_of
from nanocode.cli.evaluation_sources import evaluation_config, held_out_shards, recorded_figures
from nanocode.cli.evaluation_table import Result, agreement_lines, tables
from nanocode.cli.options import AsJson
from nanocode.config import EvaluationConfig
from nanocode.constitution.soul import Soul
from nanocode.evaluation.agreement import Comparison, compare_figures

if TYPE_CHECKING:
    from nanocode.cli.model_loading import Found, LoadedModel
    from nanocode.evaluation.contestants import Questions

DEFAULT_SUITES = "agent,soul,bits-per-byte"
_ENDPOINT = "A model behind an endpoint"
Choice = TypeVar("Choice", bound=str)


def evaluate(
    context: typer.Context,
    model: Annotated[
        str | None, typer.Argument(help="Release (nano, nano@3), digest prefix or folder; its tasks are everybody's.")
    ] = None,
    suite: Annotated[
        str,
        typer.Option(
            help="Which, joined by commas; also micro-swe (small repositories with a bug), core, human-eval, bfcl."
        ),
    ] = DEFAULT_SUITES,
    decoding: Annotated[
        str | None,
        typer.Option(help="greedy, sampled, or both joined by a comma; default: both, at an endpoint greedy."),
    ] = None,
    tasks: Annotated[int | None, typer.Option(min=1, help="Held-out tasks; default: as the model's config.")] = None,
    samples: Annotated[
        int, typer.Option(min=1, help="Times that each task is tried where decoding is sampled: pass@k and pass^k.")
    ] = 1,
    seed: Annotated[int | None, typer.Option(min=0, help="Of tasks and sampling; default: as the config.")] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="MODEL2", help="Another model, on the same tasks, side by side.")
    ] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Evaluate what is behind this address instead.", rich_help_panel=_ENDPOINT),
    ] = None,
    endpoint_model: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its name there.", rich_help_panel=_ENDPOINT)
    ] = None,
    endpoint_key_variable: Annotated[
        str | None,
        typer.Option("--endpoint-key-env", metavar="NAME", help="Variable with its key.", rich_help_panel=_ENDPOINT),
    ] = None,
    system: Annotated[
        bool,
        typer.Option(
            help="Open with instructions, which a model of this project needs not.", rich_help_panel=_ENDPOINT
        ),
    ] = True,
    concurrency: Annotated[int, typer.Option(min=1, help="Tasks at a time.", rich_help_panel=_ENDPOINT)] = 4,
    core_bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="CORE's data, with core.yaml; default: those of its record.", rich_help_panel=PANEL
        ),
    ] = None,
    core_examples: Annotated[
        int | None,
        typer.Option(min=1, help="Rows of each CORE task; default: as its record, or all.", rich_help_panel=PANEL),
    ] = None,
    human_eval: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="HumanEval.jsonl[.gz]; default: that of its record.", rich_help_panel=PANEL),
    ] = None,
    human_eval_samples: Annotated[
        int | None, typer.Option(min=1, help="Programs for each problem.", rich_help_panel=PANEL)
    ] = None,
    human_eval_temperature: Annotated[
        float | None, typer.Option(min=0, help="Of sampling them; 0: greedy.", rich_help_panel=PANEL)
    ] = None,
    human_eval_way: Annotated[
        Literal["completion", "chat", "agent"] | None,
        typer.Option(help="How programs are asked for; default: agent, at an endpoint chat.", rich_help_panel=PANEL),
    ] = None,
    bfcl: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="BFCL_v4_simple_python.json, its possible_answer beside it, or BFCL_v4_irrelevance.json.",
            rich_help_panel=PANEL,
        ),
    ] = None,
    bfcl_questions: Annotated[
        int | None, typer.Option(min=1, help="The first so many of them; default: all.", rich_help_panel=PANEL)
    ] = None,
    as_json: AsJson = False,
    store: StoreOption = None,
) -> None:
    """Evaluate a model again: agent tasks in the sandbox, adherence to the SOUL, bits per byte of held-out text.

    Code, tasks and held-out text are those of the pipeline's evaluation, and what is found is compared with the
    figures on record; exit 1 when a figure differs beyond its uncertainty. With --endpoint any model with function
    calling works on the same tasks, beside the recorded figures of MODEL.
    """
    url = store or context.obj.store
    remote = remote_of(endpoint, endpoint_model, endpoint_key_variable, concurrency, system, os.environ)
    if model is None and remote is None:
        raise typer.BadParameter("name a model, or an --endpoint", param_hint="MODEL")
    if compare is not None and remote is not None:
        raise typer.BadParameter("goes with a model of this project, not with --endpoint", param_hint="--compare")

    from nanocode.cli.model_loading import find_model

    found = None if model is None else find_model(model, url)
    questions = _questions(found, suite, decoding or ("greedy" if remote else "greedy,sampled"), tasks, seed, samples)
    console = Console(stderr=True, highlight=False)
    asking = Asking(
        questions.suites, core_bundle, core_examples, human_eval, human_eval_samples, human_eval_temperature,
        human_eval_way, bfcl, bfcl_questions,
    )  # fmt: skip
    with benchmarks_asked(asking, found, url) as benchmarks:
        if remote is not None:
            results = [Result(remote.model, _remote_figures(console, remote, questions, benchmarks))]
            if found is not None:
                results.append(Result(f"{found.label} (recorded)", recorded_figures(found.folder)))
            comparisons: dict[str, list[Comparison]] = {}
        else:
            names = [name for name in (model, compare) if name]
            results, comparisons = _own_results(console, names, url, questions, benchmarks)
    _show(results, comparisons, questions, _asked(questions.config, found), as_json)
    if any(each.verdict == "differs" for found_here in comparisons.values() for each in found_here):
        raise typer.Exit(1)


def _own_results(
    console: Console, models: Sequence[str], store: str | None, questions: Questions, benchmarks: Benchmarks
) -> tuple[list[Result], dict[str, list[Comparison]]]:
    from nanocode.cli.model_loading import load_named

    results, comparisons = [], {}
    for model in models:
        loaded = load_named(model, store)
        figures = _figures(console, loaded, store, questions)
        figures |= own_figures(console, loaded, benchmarks, questions.config.seed)
        results.append(Result(loaded.found.label, figures))
        comparisons[loaded.found.label] = compare_figures(figures, recorded_figures(loaded.found.folder))
    return results, comparisons


def _figures(console: Console, loaded: LoadedModel, store: str | None, questions: Questions) -> dict[str, Any]:
    from nanocode.evaluation.contestants import EngineContestant
    from nanocode.evaluation.suites import agent_figures

    figures: dict[str, Any] = {}
    if "bits-per-byte" in questions.suites:
        with console.status(f"{loaded.found.label}: bits per byte"):
            figures |= _bits_per_byte(loaded, store, questions.config.held_out_bytes)
    if not questions.episodes:
        return figures
    with counting(console, loaded.found.label, questions.episodes) as heard:
        return figures | agent_figures(EngineContestant(loaded.engine), questions, lambda episode: heard(1))


def _bits_per_byte(loaded: LoadedModel, store: str | None, held_out_bytes: int) -> dict[str, float]:
    from nanocode.data.shards import read_texts
    from nanocode.evaluation.bits_per_byte import bits_per_byte

    found: dict[str, float] = {}
    with held_out_shards(open_repository(store), loaded.found) as registers:
        for register, folders in sorted(registers.items()):
            texts = [text for folder in folders for text in read_texts(folder, "validation")]
            tokenizer = loaded.engine.tokenizer
            found[f"bpb_{register}"] = bits_per_byte(loaded.model, tokenizer, texts, held_out_bytes)
    return found


def _remote_figures(console: Console, remote: Remote, questions: Questions, benchmarks: Benchmarks) -> dict[str, Any]:
    from nanocode.evaluation.suites import agent_figures

    figures: dict[str, Any] = {}
    if benchmarks.bundle is not None or not (questions.episodes or benchmarks.problems or benchmarks.calls):
        raise typer.BadParameter(
            "an endpoint can do agent, soul, micro-swe, human-eval and bfcl, not bits-per-byte or core (logits)",
            param_hint="--suite",
        )
    if benchmarks.problems:
        completer = remote.completer(benchmarks.way or "chat")
        figures |= programs(console, remote.model, completer, benchmarks, questions.config.seed)
    if benchmarks.calls:
        figures |= function_calls(console, remote.model, remote.caller(), benchmarks, questions.config.seed)
    if questions.episodes:
        with counting(console, remote.model, questions.episodes) as heard:
            figures |= agent_figures(remote.contestant(), questions, lambda episode: heard(1))
    return figures


def _questions(
    found: Found | None, suite: str, decoding: str, tasks: int | None, seed: int | None, samples: int
) -> Questions:
    from nanocode.evaluation.contestants import Decoding, Questions, Suite

    config = EvaluationConfig() if found is None else evaluation_config(found.folder)
    changed = {name: value for name, value in (("tasks", tasks), ("seed", seed)) if value is not None}
    soul = project_root() / "configs" / "SOUL.md"
    if found is not None and (found.folder / "SOUL.md").is_file():
        soul = found.folder / "SOUL.md"
    decodings = _named(decoding, get_args(Decoding), "--decoding")
    if samples > 1 and "sampled" not in decodings:
        raise typer.BadParameter("greedy samples are all the same: add --decoding sampled", param_hint="--samples")
    return Questions(
        config.model_copy(update=changed),
        Soul.load(soul),
        frozenset(_named(suite, get_args(Suite), "--suite")),
        decodings,
        samples,
    )


def _named(text: str, known: tuple[Choice, ...], option: str) -> tuple[Choice, ...]:
    """Those of `known` that the text names, in their order."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in known:
            raise typer.BadParameter(f"there is no {name!r}: choose from {', '.join(known)}", param_hint=option)
    return tuple(name for name in known if name in names)


def _asked(config: EvaluationConfig, found: Found | None) -> str:
    """How these tasks relate to those on record."""
    recorded = EvaluationConfig() if found is None else evaluation_config(found.folder)
    if config == recorded:
        return "the same tasks"
    if config.seed == recorded.seed and config.tasks < recorded.tasks:
        return f"the first {config.tasks} of its {recorded.tasks} tasks"
    return "other tasks"


def _show(
    results: Sequence[Result],
    comparisons: Mapping[str, Sequence[Comparison]],
    questions: Questions,
    asked: str,
    as_json: bool,
) -> None:
    from nanocode.cli.evaluation_agent_tables import agent_tables, paired_lines, pairs

    against = pairs(*results) if len(results) == 2 else {}
    if as_json:
        document = {
            "tasks": questions.config.tasks,
            "seed": questions.config.seed,
            "soul": questions.soul.digest,
            "results": [{"name": each.name, **each.figures} for each in results],
            "agreement": {name: [vars(each) for each in found] for name, found in comparisons.items()},
            "paired": {name: pair.to_json() for name, pair in against.items()},
        }
        typer.echo(json.dumps(document))
        return
    console = Console(highlight=False)
    for table in (*tables(results), *agent_tables(results)):
        console.print(table)
        console.print()
    for line in paired_lines(results[0].name, results[-1].name, against):
        console.print(line)
    for name, found in comparisons.items():
        for line in agreement_lines(name, found, asked):
            console.print(line)
