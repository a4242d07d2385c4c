"""An instruction set as a stage of a run: cached, stopped, continued."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Build, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.config import Config
from nanocode.data import file_sources
from nanocode.stopping import Interrupted
from nanocode.tokenizer import Tokenizer
from steps.pipeline import Run, convert_instructions

ROWS = 12


def config(path: Path, **changes: Any) -> Config:
    set_of = {
        "name": "oss", "kind": "self_oss_instruct", "licence": "MIT", "glob": str(path), "near_duplicate_threshold": 1,
    }  # fmt: skip
    return Config.model_validate(
        {
            "name": "show",
            "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
            "model": {"depth": 1},
            "constitution": {"sft_tasks": 1, "preference_tasks": 1, "sources": [set_of | changes]},
        }
    )


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_sources, "BLOCK_BYTES", 300)
    path = tmp_path / "oss.jsonl"
    values = [
        {"instruction": f"Write f{n}.", "response": f"```python\ndef f{n}(x):\n    return x * {n}\n```\nDone."}
        for n in range(ROWS)
    ]
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


def opened(tmp_path: Path, store: str, settings: Config, said: list[str], stops: Any = lambda: False) -> Run:
    repository = Repository(open_store(f"file:{tmp_path / store}", tmp_path))
    info = RunInfo("Test", "1", "tester")
    return Run(settings, repository, info, say=said.append, stop_requested=stops, work=tmp_path / "work")


def tokenizer(run: Run) -> str:
    def produce(making: Build) -> None:
        Tokenizer.train([], 268).save(making.output / "tokenizer.json")

    return run.make(Stage("fit_tokenizer", "tokenizer", "show/tokenizer", "steps.fit_tokenizer", {}), produce)


def converted(run: Run) -> str:
    return convert_instructions(run, tokenizer(run))["oss"]


def test_a_stopped_set_goes_on_from_the_store_and_ends_with_the_same_record(rows: Path, tmp_path: Path) -> None:
    whole = converted(opened(tmp_path, "whole", config(rows), []))
    said: list[str] = []
    stopping = opened(tmp_path, "halved", config(rows), said, lambda: any("rows read" in line for line in said))
    with pytest.raises(Interrupted, match="instruction source oss"):
        converted(stopping)
    said.clear()
    assert converted(opened(tmp_path, "halved", config(rows), said)) == whole
    assert any("rows were done before" in line for line in said)


def test_a_set_is_made_once_and_again_only_when_its_rows_or_settings_change(rows: Path, tmp_path: Path) -> None:
    first = converted(opened(tmp_path, "store", config(rows), []))
    assert converted(opened(tmp_path, "store", config(rows, weight=3.0), [])) == first
    assert converted(opened(tmp_path, "store", config(rows, max_rows=2), [])) != first
    rows.write_text(rows.read_text().replace("Done.", "Done!"))
    assert converted(opened(tmp_path, "store", config(rows), [])) != first


def test_the_record_names_the_source_and_what_was_kept(rows: Path, tmp_path: Path) -> None:
    run = opened(tmp_path, "store", config(rows), [])
    record = run.repository.read_record(converted(run))
    assert (record.step, record.kind, record.name) == ("convert_instructions", "instructions", "show/instructions-oss")
    assert [file.path for file in record.files] == ["conversations.jsonl", "report.json"]
    raw = run.repository.read_record(record.inputs["raw"])
    assert raw.name == "show/instructions-source-oss"
    metrics = run.repository.provenances(record.digest)[-1].metrics
    assert (metrics["kept"], metrics["licences"]) == (ROWS, {"MIT": ROWS})
    assert list(metrics["sources"].values()) == [ROWS]
