"""`nanocode eval --suite core,human-eval`: downloaded benchmarks from a path or out of a model's lineage."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from benchmark_files import write_bundle, write_problems
from rich.console import Console
from scripted_server import MODEL, serving
from typer.testing import CliRunner

from artifacts.file_store import FileStore
from artifacts.records import Fingerprint, Record
from artifacts.repository import Repository, record_name
from nanocode.cli import app, model_loading
from nanocode.cli.context import Settings
from nanocode.cli.counting import counting
from nanocode.cli.evaluation_benchmarks import Asking, benchmarks_asked
from nanocode.cli.evaluation_table import Result, tables
from nanocode.cli.model_loading import Found, LoadedModel
from nanocode.conversation import Message
from nanocode.evaluation.agreement import compare_figures
from nanocode.evaluation.benchmarks import BenchmarkError
from nanocode.evaluation.intervals import Rate
from nanocode.inference.engine import Engine
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer


def invoke(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["eval", *arguments], obj=Settings(), env={"COLUMNS": "300"})


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    rows = [{"query": f"def f{n}", "choices": ["return", "first"], "gold": n % 2} for n in range(8)]
    return write_bundle(tmp_path / "bundle", {"quiz": rows}, shots=1)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return write_problems(tmp_path / "problems.jsonl")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release's papers, without its weights: its record has CORE of four rows."""
    folder = tmp_path / "model"
    folder.mkdir()
    recorded = {"core": {"examples_per_task": 4, "bundle": "other", "tasks": {}}}
    (folder / "metrics.json").write_text(json.dumps({"details": {"dpo": recorded}}))
    return folder


def test_a_model_is_asked_core_and_no_other_suite(
    bundle: Path, release: Path, tokenizer: Tokenizer, tiny_model: Callable[..., GPT], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny_model()
    loaded = LoadedModel(Found("tiny", "tiny", "", release), model, Engine(model, tokenizer))
    monkeypatch.setattr(model_loading, "load_named", lambda name, store: loaded)
    result = invoke(str(release), "--suite", "core", "--core-bundle", str(bundle), "--core-examples", "6", "--json")
    assert result.exit_code == 0, result.output
    (figures,) = json.loads(result.stdout)["results"]
    assert figures["core"]["tasks"]["quiz"]["n"] == 6 and figures["core"]["examples_per_task"] == 6
    assert set(figures) == {"name", "core"}
    assert "6 of 6 items of CORE" in result.stderr


def test_programs_are_asked_of_an_endpoint_by_chat(problems: Path, tokenizer: Tokenizer) -> None:
    def writes(conversation: list[Message]) -> Message:
        return Message("assistant", "```python\ndef one():\n    return 1\n```")

    with serving(tokenizer, writes, context_tokens=20_000) as address:
        where = ("--endpoint", f"{address}/v1", "--endpoint-model", MODEL)
        result = invoke(*where, "--suite", "human-eval", "--human-eval", str(problems), "--json")
        refused = invoke(
            *where, "--suite", "human-eval", "--human-eval", str(problems), "--human-eval-way", "completion"
        )
    (figures,) = json.loads(result.stdout)["results"]
    assert (figures["human_eval"]["way"], figures["human_eval"]["pass_at_1"]["rate"]) == ("chat", 1.0)
    assert "1 of 1 programs" in result.stderr
    assert refused.exit_code == 2 and "not a text to continue" in refused.output


def test_wrong_use_is_told_with_the_cure(bundle: Path, problems: Path, release: Path) -> None:
    endpoint = ("--endpoint", "http://127.0.0.1:9/v1", "--endpoint-model", "m")
    for arguments, said in (
        ((str(release), "--suite", "core"), "say where its files are"),
        ((str(release), "--suite", "human-eval"), "say where its files are"),
        ((*endpoint, "--suite", "core", "--core-bundle", str(bundle)), "not bits-per-byte or core"),
        (
            (str(release), "--suite", "human-eval", "--human-eval", str(problems), "--human-eval-samples", "3"),
            "add --human-eval-temperature",
        ),
    ):
        result = invoke(*arguments)
        assert result.exit_code == 2 and said in " ".join(result.output.split()), result.output
    faulty = invoke(str(release), "--suite", "core", "--core-bundle", str(release))
    assert isinstance(faulty.exception, BenchmarkError) and "core.yaml" in str(faulty.exception)


def keep(repository: Repository, kind: str, source: Path | None, **inputs: str) -> str:
    """A record of a folder's files; its digest."""
    entries = tuple(repository.put_folder(source)) if source is not None else ()
    record = Record(kind, kind, f"nano/{kind}", entries, inputs, {}, Fingerprint("f" * 64, {}))
    repository.store.put_bytes(record_name(record.digest), record.to_json())
    return record.digest


def test_without_a_path_the_files_are_those_of_the_models_own_evaluation(
    bundle: Path, problems: Path, release: Path, tmp_path: Path
) -> None:
    store = f"file:{tmp_path / 'store'}"
    repository = Repository(FileStore(tmp_path / "store"))
    alone = tmp_path / "alone"
    alone.mkdir()
    problems.rename(alone / problems.name)
    benchmarks = {"core": keep(repository, "benchmark", bundle), "human_eval": keep(repository, "benchmark", alone)}
    evaluation = keep(
        repository, "evaluation", None, **{f"benchmark.{name}": each for name, each in benchmarks.items()}
    )
    bare = keep(repository, "evaluation", release)
    found = Found("nano@1", "nano", keep(repository, "release", None, **{"evaluation.dpo": evaluation}), release)
    with benchmarks_asked(Asking(frozenset({"core", "human-eval"})), found, store) as asked:
        assert asked.bundle is not None and [task.label for task in asked.bundle.tasks] == ["quiz"]
        assert (asked.examples, asked.samples, asked.temperature) == (4, 1, 0.0)
        assert [problem.entry_point for problem in asked.problems] == ["one"]
    other = Found("nano@2", "nano", keep(repository, "release", None, **{"evaluation.dpo": bare}), release)
    with (
        pytest.raises(typer.BadParameter, match="nano@2 was evaluated without them"),
        benchmarks_asked(Asking(frozenset({"core"})), other, store),
    ):
        pass
    with benchmarks_asked(Asking(frozenset({"agent"})), other, store) as asked:
        assert asked.bundle is None and not asked.problems


def core(hits: int, n: int = 200, bundle: str = "b") -> dict[str, Any]:
    task = Rate(hits, n).to_json() | {"baseline": 0.25}
    figures = {"core": 0.1, "low": 0.0, "high": 0.2, "core_v2": 0.05, "examples_per_task": n, "bundle": bundle}
    return {"core": figures | {"tasks": {"quiz": task}}}


def programs(rate: float, way: str = "agent") -> dict[str, Any]:
    passed = {"rate": rate, "n": 164, "low": max(0.0, rate - 0.05), "high": rate + 0.05}
    asked = {"way": way, "samples": 10, "temperature": 0.8, "problems": 164}
    return {"human_eval": asked | {"pass_at_1": passed, "pass_at_10": passed, "by_outcome": {"passed": 3}}}


@pytest.mark.parametrize(
    ("measured", "recorded", "verdicts"),
    [
        (core(60), core(60), {"core.quiz": "same"}),
        (core(60), core(65), {"core.quiz": "agrees"}),
        (core(60), core(160), {"core.quiz": "differs"}),
        (core(60), core(60, bundle="another"), {}),
        (core(60), core(60, n=300), {}),
        (programs(0.1), programs(0.1), {"human_eval.pass_at_1": "same", "human_eval.pass_at_10": "same"}),
        (programs(0.1), programs(0.4), {"human_eval.pass_at_1": "differs", "human_eval.pass_at_10": "differs"}),
        (programs(0.1), programs(0.1, way="chat"), {}),
        (core(60), {}, {}),
    ],
)
def test_only_the_same_questions_are_compared_with_the_record(
    measured: dict[str, Any], recorded: dict[str, Any], verdicts: dict[str, str]
) -> None:
    assert {each.figure: each.verdict for each in compare_figures(measured, recorded)} == verdicts


def test_benchmarks_stand_in_the_tables_beside_the_rest() -> None:
    console = Console(width=150, record=True, file=io.StringIO())
    for table in tables([Result("mine", core(60) | programs(0.1)), Result("theirs", {"bpb_text": 2.0})]):
        console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["CORE", "0.1000", "(0.0000..0.2000)"] in rows
    assert ["CORE,", "corrected", "baselines", "0.0500"] in rows
    assert ["quiz", "(0.250)", "0.300", "(0.241..0.367,", "n=200)"] in rows
    at = [row[1] for row in rows if row[:1] == ["HumanEval:"]]
    assert at == ["pass@1", "pass@10", "asked"]


def test_quarters_are_told_once_however_much_is_done_at_a_time() -> None:
    console = Console(file=io.StringIO(), width=80)
    with counting(console, "nano@1", 100, "items") as heard:
        for more in (10, 20, 1, 60, 9):
            heard(more)
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "nano@1: 30 of 100 items",
        "nano@1: 91 of 100 items",
        "nano@1: 100 of 100 items",
    ]
