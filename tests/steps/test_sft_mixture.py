"""What SFT trains on: the registers of the rollouts and the instruction sets, by their shares."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanocode.config import SftConfig
from nanocode.conversation import Message, to_json
from nanocode.tokenizer import Tokenizer
from steps import sft


class Reached(Exception):
    """The point at which training would start."""


def conversations(folder: Path, name: str, registers: list[str]) -> Path:
    folder.mkdir()
    messages = to_json([Message("user", name), Message("assistant", f"{name} it is.")])
    rows = [{"id": f"{name}-{number}", "register": each, "messages": messages} for number, each in enumerate(registers)]
    (folder / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run the stage up to its training; returns (name, weight, conversations) of every source of rows."""
    Tokenizer.train([], 268).save(tmp_path / "tokenizer.json")
    rollouts = conversations(tmp_path / "rollouts", "rolled", ["stock", "soul", "soul"])
    seen: list[tuple[str, float, int]] = []

    def drawn(sources: list[Any], batch_rows: int, seed: int) -> None:
        seen.extend((each.name, each.weight, int(each._shards[0].documents)) for each in sources)
        raise Reached

    monkeypatch.setattr(sft, "load_model", lambda folder: SimpleNamespace(shape=SimpleNamespace(tokens=64)))
    monkeypatch.setattr(sft, "build_optimizer", lambda *given, **named: None)
    monkeypatch.setattr(sft, "batches", drawn)

    def run(stock_fraction: float, **sets: float) -> list[tuple[str, float, int]]:
        instructions = [
            sft.Instructions(name, conversations(tmp_path / f"from-{name}", name, ["stock"] * 4), weight)
            for name, weight in sets.items()
        ]
        scratch = tmp_path / "scratch"
        scratch.mkdir()
        inputs = sft.Inputs(tmp_path, tmp_path, [rollouts], tmp_path / "out", scratch, instructions)
        running = SimpleNamespace(say=lambda line: None, mesh=None)
        with pytest.raises(Reached):
            sft.run(SftConfig(stock_fraction=stock_fraction), 1, inputs, running)  # type: ignore[arg-type]
        return seen

    return run


def test_without_sets_there_are_the_two_registers(mixed: Any) -> None:
    assert mixed(0.25) == [("stock", 0.25, 1), ("soul", 0.75, 2)]


def test_a_set_stands_beside_the_registers_with_its_own_weight(mixed: Any) -> None:
    assert mixed(0.5, oss=0.5, evol=2.0) == [
        ("stock", 0.5, 1), ("soul", 0.5, 2), ("set-oss", 0.5, 4), ("set-evol", 2.0, 4),
    ]  # fmt: skip


def test_a_register_without_a_share_is_left_out_and_a_set_may_be_called_like_one(mixed: Any) -> None:
    assert mixed(0.0, stock=1.0) == [("soul", 1.0, 2), ("set-stock", 1.0, 4)]
