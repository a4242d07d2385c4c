"""The command line around releases and lineage: JSON shapes, exit codes, one-line errors, store by precedence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from typer.testing import CliRunner

from artifacts.build import Build, RunInfo, Stage, build
from artifacts.releases import UnknownModel, publish
from artifacts.repository import Repository, blob_name
from artifacts.store import open_store
from nanocode import cli
from nanocode.cli import context, errors
from nanocode.cli.lazy import LazyGroup, ModuleCommand
from nanocode.config import ConfigError

PROJECT = Path(__file__).resolve().parents[2]
DATE = "2026-01-02T03:04:05Z"


@pytest.fixture
def store(tmp_path: Path) -> SimpleNamespace:
    """A store with a data artifact, a model made of it, and two releases of the model's name."""
    repository = Repository(open_store(f"file:{tmp_path}/store"))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "demo.py").write_text("VALUE = 1\n")

    def make(step: str, text: str, **inputs: str) -> str:
        def produce(making: Build) -> None:
            (making.output / "file.txt").write_text(text)

        stage = Stage(step, step, f"nano/{step}", "steps.demo", {"text": text}, inputs)
        arguments = {"root": tmp_path, "run": RunInfo("F", "1", "u"), "work_root": tmp_path / "work"}
        return build(repository, stage, produce, **arguments).record_digest

    data = make("data", "[raw] text")
    model = make("train", "weights", tokens=data)
    publish(repository, "nano", data, {"bpb": 2.0}, DATE)
    publish(repository, "nano", model, {"bpb": 1.23456789, "by_task": {"edit": 1}}, DATE)
    return SimpleNamespace(
        url=f"file:{tmp_path}/store", root=tmp_path / "store", data=data, model=model, repo=repository
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]):
    """Call `nanocode ARGUMENTS`; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nanocode", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def test_models_as_json_has_the_promised_shape(store, run):
    code, out, err = run("--store", store.url, "models", "--json")
    assert (code, err) == (0, "")
    first, second = json.loads(out)
    assert set(first) == {"name", "version", "digest", "created", "metrics"}
    assert second == {
        "name": "nano",
        "version": 2,
        "digest": store.model,
        "created": DATE,
        "metrics": {"bpb": 1.23456789, "by_task": {"edit": 1}},
    }


def test_models_as_a_table_shows_name_digest_and_scalar_metrics(store, run):
    code, out, _ = run("models", "--store", store.url)
    assert code == 0
    assert "nano@2" in out
    assert store.model[:12] in out
    assert "bpb 1.235" in out


def test_an_empty_store_lists_nothing_and_says_what_to_do(tmp_path, run):
    assert run("--store", f"file:{tmp_path}/none", "models", "--json") == (0, "[]\n", "")
    code, out, _ = run("--store", f"file:{tmp_path}/none", "models")
    assert code == 0
    assert "nanocode run" in out


def test_show_prints_the_tree_down_to_the_source(store, run):
    code, out, _ = run("--store", store.url, "lineage", "show", "nano")
    assert code == 0
    assert out.index("train") < out.index("tokens: data")
    assert store.data[:12] in out
    assert "text=[raw] text" in out


def test_show_as_json_nests_inputs(store, run):
    code, out, _ = run("--store", store.url, "lineage", "show", store.model[:10], "--json")
    document = json.loads(out)
    assert (code, document["record"], document["step"]) == (0, store.model, "train")
    assert [(node["role"], node["record"]) for node in document["inputs"]] == [("tokens", store.data)]


def test_verify_says_yes_with_what_it_read(store, run):
    code, out, _ = run("--store", store.url, "lineage", "verify", "nano@2", "--json")
    assert code == 0
    size = len("[raw] text") + len("weights")
    expected = {"model": "nano@2", "record": store.model, "ok": True, "records": 2, "blobs": 2, "bytes": size}
    assert json.loads(out) == expected | {"faults": [], "notes": ["nano@2 is not signed"]}


def test_verify_exits_1_and_names_the_lie(store, run):
    name = blob_name(store.repo.read_record(store.data).files[0].sha256)
    (store.root / name).chmod(0o644)
    (store.root / name).write_text("[Raw] text")
    code, out, _ = run("--store", store.url, "lineage", "verify", "nano")
    assert code == 1
    assert "altered-blob: nano/data: file.txt" in out
    assert name in out
    code, out, _ = run("--store", store.url, "lineage", "verify", "nano", "--json")
    document = json.loads(out)
    assert (code, document["ok"]) == (1, False)
    assert [(fault["kind"], fault["object"]) for fault in document["faults"]] == [("altered-blob", name)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lineage", "show", "nanu"), "did you mean 'nano'"),
        (("lineage", "verify", "nano@9"), "only 1, 2"),
        (("models", "--store", "ftp://x"), "supported kinds"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(store, run, arguments, message):
    code, out, err = run("--store", store.url, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    assert message in err


def test_an_altered_record_is_one_line_and_exit_1(store, run):
    path = store.root / "records" / f"{store.model}.json"
    path.chmod(0o644)
    path.write_text("{}")
    code, _, err = run("--store", store.url, "lineage", "show", "nano")
    assert code == 1
    assert err.count("\n") == 1
    assert "was altered" in err


def test_debug_shows_the_traceback(store, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["nanocode", "--debug", "--store", store.url, "lineage", "show", "nanu"])
    with pytest.raises(UnknownModel):
        cli.main()


def test_the_store_is_chosen_by_option_then_environment_then_default(store, run, tmp_path, monkeypatch):
    monkeypatch.setattr(context, "project_root", lambda: tmp_path)
    monkeypatch.delenv("NANOCODE_STORE", raising=False)
    assert "file:" + str(tmp_path / ".nanocode" / "store") in run("models")[1]
    monkeypatch.setenv("NANOCODE_STORE", "file:store")
    assert "nano@2" in run("models")[1]
    monkeypatch.chdir(tmp_path)
    assert "file:" + str(tmp_path / "other") in run("--store", "file:other", "models")[1]


def test_an_option_before_the_command_reaches_commands_with_a_store_option_of_their_own(monkeypatch):
    seen = []

    def command(store: str | None = None) -> None:
        seen.append(store)

    monkeypatch.setattr(ModuleCommand, "load", lambda self: typer.main.get_command(_single(command)))
    runner = CliRunner()
    for arguments in (["--store", "file:a", "models"], ["models", "--store", "file:b"], ["models"]):
        assert runner.invoke(cli.app, arguments, obj=context.Settings()).exit_code == 0
    assert seen == ["file:a", "file:b", None]


def _single(function) -> typer.Typer:
    app = typer.Typer(add_completion=False)
    app.command()(function)
    return app


def test_a_model_becomes_a_verified_folder_and_an_altered_copy_is_replaced(store, tmp_path, monkeypatch):
    monkeypatch.setattr(context, "project_root", lambda: tmp_path)
    folder = context.model_folder(store.repo, "nano")
    assert folder == tmp_path / ".nanocode" / "models" / store.model
    assert (folder / "file.txt").read_text() == "weights"
    (folder / "file.txt").write_text("altered")
    assert (context.model_folder(store.repo, "nano@2") / "file.txt").read_text() == "weights"
    assert [path.name for path in folder.parent.iterdir()] == [store.model]
    assert context.model_folder(store.repo, str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (ConfigError("configs/x.toml: a\nb"), 2, "configs/x.toml: a b"),
        (UnknownModel("no model"), 2, "no model"),
        (FileNotFoundError(2, "No such file", "x"), 1, "[Errno 2] No such file: 'x'"),
        (KeyError("k"), 1, "unexpected KeyError: 'k' (a bug in nanocode; --debug before the command shows where)"),
    ],
)
def test_errors_become_a_line_and_a_code(error, code, line):
    assert (errors.exit_code(error), errors.one_line(error)) == (code, line)


def test_every_command_there_is_loads_and_has_one_line_of_help():
    there = [command for command in LazyGroup.lazy_commands.values() if command.source.is_file()]
    assert {"models", "lineage"} <= {command.module.rpartition(".")[2] for command in there}
    for command in there:
        assert command.short_help().endswith((".", "..."))
        assert command.load() is not None


def test_help_is_fast_because_it_imports_nothing_heavy():
    script = (
        "import sys\nfrom nanocode.cli import main\nsys.argv = ['nanocode', '--help']\ntry:\n    main()\nfinally:\n"
    )
    script += "    heavy = {'jax', 'numpy', 'pydantic', 'metaflow', 'tokenizers', 'openai'} & set(sys.modules)\n"
    script += "    assert not heavy, heavy\n"
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=PROJECT, env=os.environ | {"COLUMNS": "200"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "List the released model versions" in done.stdout
    assert "MODEL is a release" in done.stdout
    assert time.monotonic() - started < 5
