"""The flow as a command: it works anywhere, refuses what it cannot run in one line, and has the documented shape."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FLOW = ROOT / "flows" / "full_pipeline.py"
TINY = (ROOT / "tests" / "e2e" / "tiny.toml").read_text()

DAG = {
    "start": ["shard_data"],
    "shard_data": ["gather_shards"],
    "gather_shards": ["fit_tokenizer"],
    "fit_tokenizer": ["pretrain", "plan_rollouts"],
    "pretrain": ["evaluate_base"],
    "evaluate_base": ["sft"],
    "plan_rollouts": ["generate_rollouts"],
    "generate_rollouts": ["gather_rollouts"],
    "gather_rollouts": ["sft"],
    "sft": ["dpo"],
    "dpo": ["evaluate"],
    "evaluate": ["release"],
    "release": ["end"],
    "end": [],
}


def flow(*arguments: object, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(FLOW), *map(str, arguments)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("user", [{}, {"USER": "root"}, {"USER": "somebody"}])
def test_show_works_with_an_empty_environment_from_any_folder_and_prints_the_dag(tmp_path: Path, user) -> None:
    done = flow("show", folder=tmp_path, **user)
    assert done.returncode == 0, done.stderr
    blocks = re.split(r"^Step ", done.stdout, flags=re.MULTILINE)[1:]
    shown = [(block.split()[0], re.findall(r"=> (.*)", block)) for block in blocks]
    assert [(name, after[0].split(", ") if after else []) for name, after in shown] == list(DAG.items())
    assert list(tmp_path.iterdir()) == []


def test_help_works_with_an_empty_environment(tmp_path: Path) -> None:
    done = flow("--help", folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "TOML file of the run" in done.stdout


def test_every_step_has_the_stage_wrapper_innermost_and_a_docstring() -> None:
    (definition,) = [node for node in ast.parse(FLOW.read_text()).body if isinstance(node, ast.ClassDef)]
    steps = [node for node in definition.body if isinstance(node, ast.FunctionDef) and node.name in DAG]
    assert [step.name for step in steps] == list(DAG)
    for step in steps:
        assert [ast.unparse(decorator) for decorator in step.decorator_list][-2:] == ["step", "stage"]
        assert ast.get_docstring(step)


IMPORT_PROBE = """
import json, os, signal, sys
import metaflow, metaflow.cards
def state():
    return [dict(os.environ), sys.path[:], os.getcwd(), sorted(os.listdir(".")), signal.getsignal(signal.SIGTERM)]
before = state()
import flows.full_pipeline
assert state() == before, (state(), before)
assert "jax" not in sys.modules
print(flows.full_pipeline.FullPipeline.__doc__)
"""


def test_importing_the_flow_does_nothing_and_does_not_load_jax(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_PROBE, "--no-such-option"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Train a small coding agent end to end" in done.stdout


def files_source(folder: Path, content: bytes | None) -> str:
    """The tiny config with one local source instead of its two; `content` is its one file."""
    texts = folder / "texts"
    texts.mkdir()
    if content is not None:
        (texts / "file.txt").write_bytes(content)
    head, _, tail = TINY.partition("[[data.sources]]")
    source = '[[data.sources]]\nname = "own"\nkind = "files"\nregister_as = "text"\nlicence = "none"\n'
    return f'{head}{source}glob = "{texts}/*.txt"\n\n[tokenizer]{tail.partition("[tokenizer]")[2]}'


def run_with(config: str | None, folder: Path, *arguments: str) -> tuple[int, str]:
    """Status and output of a real run with its own store and Metaflow folder."""
    if config is not None:
        (folder / "own.toml").write_text(config)
    done = flow(
        *("--config", "config", folder / "own.toml", "run", *arguments),
        folder=folder,
        PATH=os.environ["PATH"],
        NANOCODE_STORE=f"file:{folder}/store",
        METAFLOW_DATASTORE_SYSROOT_LOCAL=str(folder),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("seed = 1", "sed = 1"), "unknown key 'sed': did you mean 'seed'?"),
        (("[model]", "[model"), "is not valid TOML"),
        (("vocab_size = 300", "vocab_size = 1"), "tokenizer.vocab_size: Input should be greater than"),
        (None, "could not be read"),
    ],
)
def test_a_bad_config_is_refused_in_one_line_before_anything_runs(tmp_path: Path, change, message: str) -> None:
    status, output = run_with(TINY.replace(*change) if change else None, tmp_path)
    assert status != 0
    assert "Traceback" not in output
    assert [line for line in output.splitlines() if message in line]
    assert "Workflow starting" not in output
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "data source 'own': no file matches"), (bytes(range(256)) * 40, "nothing passed the filter")],
)
def test_a_source_without_text_ends_the_run_in_one_line(tmp_path: Path, content: bytes | None, message: str) -> None:
    status, output = run_with(files_source(tmp_path, content), tmp_path)
    assert status == 1
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if ")] error: " in line]
    assert message in line
    assert "shard_data: made" not in output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("dpo.lrr=1", "unknown key 'dpo.lrr': did you mean 'lr'?"),
        ("model.heads=5", "does not divide into 5 heads of even width: change model.width or model.heads"),
    ],
)
def test_a_bad_override_ends_the_run_in_one_line_before_any_data(tmp_path: Path, override: str, message: str) -> None:
    status, output = run_with(TINY, tmp_path, "--override", override)
    assert status == 1
    assert "Traceback" not in output
    (line,) = [line for line in output.splitlines() if ")] error: " in line]
    assert message in line
    assert "shard_data" not in output
