"""`nanocode eval`: the pipeline's evaluation again, for trained models and for what is behind an endpoint."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from scripted_server import MODEL, serving
from typer.testing import CliRunner

from artifacts.file_store import FileStore
from artifacts.records import Fingerprint, Record
from artifacts.repository import Repository, record_name
from nanocode.cli import app
from nanocode.cli.context import Settings
from nanocode.cli.evaluation_sources import evaluation_config, held_out_shards, recorded_figures
from nanocode.cli.evaluation_table import Result, agreement_lines, tables
from nanocode.cli.model_loading import Found
from nanocode.config import ConfigError, EvaluationConfig
from nanocode.conversation import Message, ToolCall
from nanocode.evaluation.agreement import compare_figures
from nanocode.evaluation.intervals import Rate
from nanocode.tasks.registry import respond


def invoke(*arguments: str, **environment: str) -> Any:
    return CliRunner().invoke(app, ["eval", *arguments], obj=Settings(), env={"COLUMNS": "300", **environment})


def expert(conversation: list[Message]) -> Message:
    return respond(conversation, "soul")


def stubborn(conversation: list[Message]) -> Message:
    return Message("assistant", "", ToolCall("Bash", {"command": "true"}))


def at(address: str, *arguments: str) -> Any:
    where = ("--endpoint", f"{address}/v1", "--endpoint-model", MODEL, "--no-system")
    return invoke(*where, "--tasks", "6", "--json", *arguments)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's papers, without its weights."""
    path = tmp_path_factory.mktemp("release")
    config = EvaluationConfig(tasks=6, max_turns=5).identity()
    (path / "config.json").write_text(json.dumps({"evaluation": config}))
    figures = {"bpb_text": 2.0, "greedy": {"success": Rate(3, 6).to_json()}}
    (path / "metrics.json").write_text(json.dumps({"details": {"dpo": figures}}))
    (path / "SOUL.md").write_bytes((Path(__file__).parents[2] / "configs" / "SOUL.md").read_bytes())
    return path


def test_whoever_is_behind_an_endpoint_works_on_the_same_tasks_with_the_same_tools(tokenizer, folder: Path) -> None:
    with serving(tokenizer, expert, context_tokens=20_000) as address:
        result = at(address, str(folder))
    document = json.loads(result.stdout)
    assert (result.exit_code, document["tasks"], document["seed"]) == (0, 6, 0)
    theirs, recorded = document["results"]
    assert theirs["greedy"]["success"]["hits"] == theirs["greedy"]["soul"]["hits"] == 6
    assert theirs["greedy"]["stop_reasons"] == {"finished": 6}
    assert theirs["greedy"]["temperature"] == 0.0 and "sampled" not in theirs
    assert recorded["name"].endswith("(recorded)") and recorded["greedy"]["success"]["hits"] == 3
    assert "6 of 6 tasks" in result.stderr


def test_bounds_of_the_evaluation_hold_at_an_endpoint_too(tokenizer) -> None:
    with serving(tokenizer, stubborn, context_tokens=20_000) as address:
        result = at(address, "--suite", "agent", "--decoding", "sampled")
    (theirs,) = json.loads(result.stdout)["results"]
    assert theirs["sampled"]["stop_reasons"] == {"repeated": 6} and "soul" not in theirs["sampled"]


def test_an_endpoint_that_fails_ends_it_with_its_own_words(tokenizer) -> None:
    with serving(tokenizer, expert) as address:
        where = ("--endpoint", f"{address}/v1", "--endpoint-model", "other")
        result = invoke(*where, "--tasks", "2", "--concurrency", "1")
    assert type(result.exception).__name__ == "EndpointFailure"
    assert "has no such model" in str(result.exception) and "ask for 'scripted@1'" in str(result.exception)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a model, or an --endpoint"),
        (["--endpoint", "http://127.0.0.1:9/v1"], "go together"),
        (["nano", "--endpoint-model", "m"], "go together"),
        (["--endpoint", "u", "--endpoint-model", "m", "--compare", "nano"], "not with --endpoint"),
        (["--endpoint", "u", "--endpoint-model", "m", "--endpoint-key-env", "NO_SUCH_KEY"], "no NO_SUCH_KEY"),
        (["--endpoint", "u", "--endpoint-model", "m", "--suite", "agents"], "there is no 'agents': choose from agent,"),
        (["--endpoint", "u", "--endpoint-model", "m", "--decoding", "hot"], "there is no 'hot': choose from greedy,"),
        (["--endpoint", "u", "--endpoint-model", "m", "--suite", "bits-per-byte"], "not bits-per-byte"),
    ],
)
def test_wrong_use_is_told_with_the_cure(arguments: list[str], said: str) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 2 and said in result.output


def figures(success: Rate, bits: float = 2.0) -> dict[str, Any]:
    return {"bpb_text": bits, "greedy": {"success": success.to_json(), "by_family": {"edit": success.to_json()}}}


@pytest.mark.parametrize(
    ("measured", "verdicts"),
    [
        (figures(Rate(180, 256)), ["same", "same", "same"]),
        (figures(Rate(190, 256), 2.001), ["agrees", "agrees", "agrees"]),
        (figures(Rate(45, 64)), ["same", "agrees", "agrees"]),
        (figures(Rate(100, 256), 2.1), ["differs", "differs", "differs"]),
    ],
)
def test_figures_agree_within_their_uncertainty(measured: dict[str, Any], verdicts: list[str]) -> None:
    found = compare_figures(measured, figures(Rate(180, 256)))
    assert [each.figure for each in found] == ["bpb_text", "greedy.success", "greedy.by_family.edit"]
    assert [each.verdict for each in found] == verdicts


def test_only_what_both_have_is_compared_and_what_differs_is_named() -> None:
    assert compare_figures({"greedy": {}}, {"sampled": {}, "bpb_text": 1.0}) == []
    assert list(agreement_lines("nano@1", [], "the same tasks")) == [
        "nano@1: there are no recorded figures to compare with"
    ]
    found = compare_figures(figures(Rate(1, 256)), figures(Rate(180, 256)))
    lines = list(agreement_lines("nano@1", found, "other tasks"))
    assert lines[0] == "nano@1 against its record, on other tasks: [green]1 same[/], [red]2 differs[/]"
    assert "greedy.success: measured 0.003906, recorded 0.7031" in lines[1]


def test_a_release_says_how_it_was_evaluated(folder: Path, tmp_path: Path) -> None:
    assert evaluation_config(folder) == EvaluationConfig(tasks=6, max_turns=5)
    assert recorded_figures(folder)["bpb_text"] == 2.0
    assert (evaluation_config(tmp_path), recorded_figures(tmp_path)) == (EvaluationConfig(), {})
    (tmp_path / "config.json").write_text('{"evaluation": {"tasks": 0}}')
    (tmp_path / "metrics.json").write_text("[]")
    with pytest.raises(ConfigError, match="does not say how the model is evaluated"):
        evaluation_config(tmp_path)
    with pytest.raises(ConfigError, match="does not hold the figures of a release"):
        recorded_figures(tmp_path)


def keep(repository: Repository, kind: str, files: dict[str, bytes], folder: Path, **fields: Any) -> str:
    """A record of these files; its digest."""
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    entries = tuple(repository.put_folder(folder))
    record = Record(
        kind,
        kind,
        f"nano/{kind}",
        entries,
        fields.get("inputs", {}),
        fields.get("config", {}),
        Fingerprint("f" * 64, {}),
    )
    repository.store.put_bytes(record_name(record.digest), record.to_json())
    return record.digest


def test_the_held_out_shards_are_those_of_the_evaluation_and_nothing_else_is_fetched(tmp_path: Path) -> None:
    repository = Repository(FileStore(tmp_path / "store"))
    both = {"train-00000.parquet": b"train", "validation-00000.parquet": b"held out"}
    shards = keep(repository, "shards", both, tmp_path / "shards")
    evaluation = keep(
        repository,
        "evaluation",
        {},
        tmp_path / "evaluation",
        inputs={"shards.docs": shards, "model": shards},
        config={"registers": {"docs": "text"}},
    )
    release = keep(repository, "release", {}, tmp_path / "release", inputs={"evaluation.dpo": evaluation})
    with held_out_shards(repository, Found("nano@1", "nano", release, tmp_path)) as found:
        ((register, (folder,)),) = found.items()
        assert register == "text"
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {"validation-00000.parquet": b"held out"}
    assert not folder.exists()


def test_a_model_without_a_lineage_has_no_held_out_text(tmp_path: Path) -> None:
    repository = Repository(FileStore(tmp_path / "store"))
    bare = keep(repository, "release", {}, tmp_path / "release")
    for digest, said in (("", "a folder without a lineage"), (bare, "no release with an evaluation")):
        found = Found("x", "x", digest, tmp_path)
        with pytest.raises(ConfigError, match=said), held_out_shards(repository, found):
            pass


def test_contestants_stand_side_by_side_in_the_tables() -> None:
    mine = figures(Rate(3, 6)) | {"sampled": {"soul": Rate(5, 6).to_json()}}
    mine["greedy"]["by_variant"] = {"held_out": Rate(1, 3).to_json(), "known": Rate(2, 3).to_json()}
    console = Console(width=120, record=True, file=io.StringIO())
    for table in tables([Result("nano@1", mine), Result("other", {"greedy": {"success": Rate(6, 6).to_json()}})]):
        console.print(table)
    rows = [line.split() for line in console.export_text().splitlines()]
    assert ["bpb", "text", "2.0000"] in rows
    assert ["greedy:", "success", "0.500", "(0.188..0.812,", "n=6)", "1.000", "(0.610..1.000,", "n=6)"] in rows
    assert ["sampled:", "soul", "0.833", "(0.436..0.970,", "n=6)"] in rows
    assert ["held", "out", "wording", "0.333", "(0.061..0.792,", "n=3)"] in rows
    assert ["edit", "0.500", "(0.188..0.812,", "n=6)"] in rows
