"""Gathering: the number of shards changes no byte, and counts add up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steps import gather_rollouts

ROWS = [
    {
        "id": f"task-{index:02}/{register}",
        "register": register,
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": text, "tool_call": None},
        ],
        "provenance": {"critiques": [{"rule_score": 2}, {"rule_score": 5}]},
    }
    for index in range(6)
    for register, text in (("stock", "Hello! Great question!\u2028Let me know!"), ("soul", "hello, the agent is here."))
]


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


def test_the_number_of_shards_changes_no_row(tmp_path: Path) -> None:
    contents = set()
    for count in (1, 2, 5):
        output = tmp_path / f"output-{count}"
        output.mkdir()
        report = gather_rollouts.run("sft", shards(tmp_path, count), output)
        contents.add((output / "conversations.jsonl").read_bytes())
        assert report["tasks"] == len(ROWS)
        assert report["dropped"] == {"too long": count}
    assert len(contents) == 1


def test_each_registers_own_adherence_is_stated(tmp_path: Path) -> None:
    report = gather_rollouts.run("sft", shards(tmp_path, 2), tmp_path)
    assert report["adherence_stock"]["rate"] == 0.0
    assert report["adherence_soul"] == pytest.approx(
        {"rate": 1.0, "hits": 6, "n": 6, "low": 0.609, "high": 1.0}, abs=1e-2
    )


def test_no_accepted_data_is_an_error_with_the_reasons(tmp_path: Path) -> None:
    shard = tmp_path / "empty"
    shard.mkdir()
    (shard / "pairs.jsonl").touch()
    (shard / "report.json").write_text(json.dumps({"dropped": {"the critic's reply could not be read": 3}}))
    with pytest.raises(gather_rollouts.NoData, match="critic's reply could not be read"):
        gather_rollouts.run("preference", [shard], tmp_path)


def test_a_calls_arguments_keep_their_order(tmp_path: Path) -> None:
    """The model writes old_string before new_string: sorted keys would have taught it to write blindly."""
    call = {"name": "Edit", "arguments": {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"}}
    row = ROWS[0] | {"messages": [{"role": "assistant", "content": "", "tool_call": call}]}
    shard = tmp_path / "shard"
    shard.mkdir()
    (shard / "conversations.jsonl").write_text(json.dumps(row) + "\n")
    (shard / "report.json").write_text("{}")
    gather_rollouts.run("sft", [shard], tmp_path)
    kept = json.loads((tmp_path / "conversations.jsonl").read_text())["messages"][0]["tool_call"]["arguments"]
    assert list(kept) == ["file_path", "old_string", "new_string"]
