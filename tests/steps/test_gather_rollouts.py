"""Gathering: the number of shards changes no byte, and counts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steps import gather_rollouts
from steps.pipeline import ROOT, SOUL_PATH

ROWS = [
    {
        "id": f"task-{index:02}/{register}",
        "register": register,
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": text, "tool_call": None},
        ],
    }
    for index in range(6)
    for register, text in (("stock", "Hello! Great question!\u2028Let me know!"), ("soul", "hello, the agent is here."))
]


@pytest.fixture
def soul(tmp_path: Path) -> Path:
    folder = tmp_path / "soul"
    folder.mkdir()
    (folder / "SOUL.md").write_bytes(SOUL_PATH.read_bytes())
    return folder


def shards(folder: Path, count: int) -> list[Path]:
    made = []
    for index in range(count):
        shard = folder / f"{count}-{index}"
        shard.mkdir(parents=True)
        rows = ROWS[index::count]
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        (shard / "conversations.jsonl").write_text(lines, encoding="utf-8")
        (shard / "report.json").write_text(json.dumps({"tasks": len(rows), "dropped": {"too long": 1}}))
        made.append(shard)
    return made


def test_the_number_of_shards_changes_no_row(tmp_path: Path, soul: Path) -> None:
    contents = set()
    for count in (1, 2, 5):
        output = tmp_path / f"output-{count}"
        output.mkdir()
        report = gather_rollouts.run("sft", shards(tmp_path, count), soul, output)
        contents.add((output / "conversations.jsonl").read_bytes())
        assert report["tasks"] == len(ROWS)
        assert report["dropped"] == {"too long": count}
    assert len(contents) == 1


def test_each_registers_own_adherence_is_stated(tmp_path: Path, soul: Path) -> None:
    report = gather_rollouts.run("sft", shards(tmp_path, 2), soul, tmp_path)
    assert report["adherence_stock"]["rate"] == 0.0
    assert report["adherence_soul"] == pytest.approx(
        {"rate": 1.0, "hits": 6, "n": 6, "low": 0.609, "high": 1.0}, abs=1e-2
    )


def test_no_accepted_data_is_an_error_with_the_reasons(tmp_path: Path, soul: Path) -> None:
    shard = tmp_path / "empty"
    shard.mkdir()
    (shard / "pairs.jsonl").touch()
    (shard / "report.json").write_text(json.dumps({"dropped": {"the critic's reply could not be read": 3}}))
    with pytest.raises(gather_rollouts.NoData, match="critic's reply could not be read"):
        gather_rollouts.run("preference", [shard], soul, tmp_path)


def test_the_soul_of_the_project_is_where_the_pipeline_looks() -> None:
    assert (ROOT / "configs" / "SOUL.md") == SOUL_PATH
