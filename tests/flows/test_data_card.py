"""The card of generated data: counts from the rows, cost from the shards, pairs beside each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from metaflow.cards import Markdown, Table

from artifacts.build import Build, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from flows import cards
from flows.examples import conversation_markdown, fenced
from nanocode.config import Config
from steps.pipeline import Run
from steps.pipeline.generated import generated

MESSAGES = [
    {"role": "user", "content": "```\n# not a heading"},
    {"role": "assistant", "content": "", "tool_call": {"name": "Read", "arguments": {"file_path": "a.py"}}},
    {"role": "tool_result", "content": "    1→<script>"},
    {"role": "assistant", "content": "done."},
]
CRITIQUES = [{"score": 2, "violations": ["lowercase"]}, {"score": 5, "violations": []}]


def made_run(tmp_path: Path) -> Run:
    config = Config.model_validate(
        {
            "name": "show",
            "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
            "model": {"depth": 1},
            "constitution": {"sft_tasks": 1, "preference_tasks": 1},
        }
    )
    repository = Repository(open_store(f"file:{tmp_path / 'store'}", tmp_path))
    return Run(config, repository, RunInfo("Test", "1", "tester"), say=lambda line: None, work=tmp_path / "work")


def make(run: Run, step: str, name: str, rows: list[dict[str, Any]], inputs: dict[str, str], **cost: float) -> str:
    def produce(making: Build) -> dict[str, Any]:
        file = making.output / ("pairs.jsonl" if "chosen" in (rows or [{}])[0] else "conversations.jsonl")
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        making.cost.update(cost)
        return {"kept": len(rows)}

    return run.make(Stage(step, "rollouts", f"show/{name}", "steps.gather_rollouts", {"name": name}, inputs), produce)


def test_the_card_shows_what_the_rows_the_shards_and_the_records_say(tmp_path: Path) -> None:
    run = made_run(tmp_path)
    provenance = {"task": "t", "critiques": CRITIQUES}
    conversation = {"id": "t/soul", "messages": MESSAGES, "provenance": provenance}
    pair = {"id": "t/pair", "chosen": {"messages": MESSAGES}, "rejected": {"messages": MESSAGES}}
    shards = [make(run, "generate_rollouts", f"r{n}", [conversation], {}, tokens_in=5, requests=2) for n in range(2)]
    inputs = {f"shard_{number}": shard for number, shard in enumerate(shards)}
    conversations = make(run, "gather_rollouts", "c", [conversation] * 2, inputs, tokens_in=1_000)
    pairs = make(run, "gather_rollouts", "p", [pair | {"provenance": provenance}] * 3, {"shard_0": shards[0]})
    found = generated(run.repository, conversations)
    assert found.counts == {
        "accepted at attempt": {"2": 1}, "scores": {"2": 1, "5": 1}, "violated principles": {"lowercase": 1},
    }  # fmt: skip
    assert (found.cost["tokens_in"], found.cost["requests"]) == (10, 4)
    card: list[Any] = []
    cards.data(card, run, conversations, pairs, {"oss": make(run, "convert_instructions", "i", [conversation], {})})
    titles = [part._text.partition("\n")[0] for part in card if isinstance(part, Markdown)]
    assert titles == ["# conversations", "# preference pairs", "# instruction set oss", "# Example pairs"]
    headers = [part._headers[0] for part in card if isinstance(part, Table)]
    each = ["count", "accepted at attempt", "scores", "violated principles", "cost"]
    assert headers == [*each, *each, "count", "chosen", "chosen"]
    assert all(part.render() for part in card)


def test_what_a_conversation_says_is_fenced() -> None:
    assert fenced("a ```` b") == "`````text\na ```` b\n`````"
    text = conversation_markdown(MESSAGES)
    assert "````text\n```\n# not a heading\n````" in text
    assert "**assistant**\n\n```text\nRead\nfile_path: a.py\n```" in text


def test_a_long_text_is_cut_with_its_length() -> None:
    assert fenced("x" * 2_000).endswith("x\n... 2,000 characters\n```")
