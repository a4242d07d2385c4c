"""What was paid for under one key of a stage is not bought again under another, and ledgers do not pile up."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import RunInfo
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.config import Config
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.prompts import part_of
from nanocode.constitution.soul import Soul
from nanocode.serving.teacher import answer
from steps.pipeline import Run, generate_rollouts, import_soul
from steps.pipeline.earlier_answers import tidy_ledgers
from tests.steps.answering import answering

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")
SHARD = ("sft", 0, 1)
TASKS = 4


class Teacher:
    """The rule teacher, which cuts what its generator says in closing at `cut_below` tokens of max_tokens."""

    def __init__(self) -> None:
        self.asked: Counter[tuple[str | None, int]] = Counter()
        self.cut_below = 0
        self.broken: str | None = None

    def reply(self, body: bytes, authorization: str) -> tuple[int, bytes]:
        request = json.loads(body)
        part = part_of(request["messages"][0]["content"])
        self.asked[part, request["max_tokens"]] += 1
        if part == self.broken:
            return 503, b"{}"
        completion = answer(body, SOUL)
        choice = completion["choices"][0]
        if part == "generator" and choice["finish_reason"] == "stop" and request["max_tokens"] < self.cut_below:
            choice["finish_reason"] = "length"
        return 200, json.dumps(completion).encode()


@pytest.fixture
def teacher():
    state = Teacher()
    with answering(state.reply) as state.base_url:
        yield state


class Machine:
    """A machine of its own before the store that all share."""

    def __init__(self, folder: Path, teacher: Teacher, name: str = "here") -> None:
        self.folder, self.teacher, self.work = folder, teacher, folder / name
        self.said: list[str] = []

    def run(self, max_tokens: int = 512, **constitution: Any) -> Run:
        endpoint = {"base_url": self.teacher.base_url, "max_attempts": 1, "max_tokens": max_tokens}
        parts = dict.fromkeys(("generator", "critic", "reviser"), endpoint)
        values = {
            "name": "show",
            "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
            "model": {"depth": 1},
            "constitution": {"sft_tasks": TASKS, "preference_tasks": 1, "concurrency": 1, **parts, **constitution},
        }
        repository = Repository(open_store(f"file:{self.folder / 'store'}", self.folder))
        info = RunInfo("Test", "1", "tester")
        return Run(Config.model_validate(values), repository, info, say=self.said.append, work=self.work)

    def make(self, **changes: Any) -> str:
        run = self.run(**changes)
        return generate_rollouts(run, SHARD, "no tokenizer", import_soul(run))

    def cost(self, record: str) -> dict[str, Any]:
        return self.run().repository.provenances(record)[-1].cost

    def ledgers(self) -> list[Path]:
        return sorted((self.work / "ledgers").glob("*/*.jsonl"))


def rows(run: Run, record: str, folder: Path) -> list[dict[str, Any]]:
    run.repository.materialise(record, folder)
    return [json.loads(line) for line in (folder / "conversations.jsonl").open(encoding="utf-8")]


@pytest.fixture
def here(tmp_path: Path, teacher: Teacher) -> Machine:
    return Machine(tmp_path, teacher)


def test_a_raised_bound_asks_again_only_for_cut_answers_and_the_rows_are_those_of_a_fresh_run(here, tmp_path):
    here.teacher.cut_below = 500
    small = here.make(max_tokens=400)
    before = here.teacher.asked.copy()
    large = here.make(max_tokens=800)
    asked = here.teacher.asked - before
    assert dict(asked) == {("generator", 800): TASKS}, "each closing sentence, and nothing else"
    fresh = Machine(tmp_path / "fresh", here.teacher)
    expected = rows(fresh.run(), fresh.make(max_tokens=800), tmp_path / "fresh-rows")
    found = rows(here.run(), large, tmp_path / "rows")
    assert [row["messages"] for row in found] == [row["messages"] for row in expected]
    assert here.cost(large)["reused_requests"] == here.cost(small)["requests"] - TASKS
    assert here.cost(large)["requests"] == TASKS, "what the first record has on its bill is not billed again"


def test_another_machine_takes_over_what_a_record_holds(here, tmp_path):
    here.make()
    bought = here.teacher.asked.total()
    there = Machine(tmp_path, here.teacher, "there")
    again = there.make(accept_score=4)  # another key; no request differs
    assert here.teacher.asked.total() == bought
    assert there.cost(again)["requests"] == 0
    assert any("answers of other attempts and runs are looked into first" in line for line in there.said)


@pytest.mark.parametrize("machine", ["here", "there"])
def test_an_attempt_that_failed_under_another_key_is_not_bought_again_on_any_machine(machine, here, tmp_path):
    here.teacher.broken = "reviser"
    with pytest.raises(EndpointError, match="lack an answer"):
        here.make(max_tokens=400)
    here.teacher.broken = None
    bought = here.teacher.asked[("generator", 400)], here.teacher.asked[("critic", 400)]
    made = Machine(tmp_path, here.teacher, machine).make(max_tokens=800)
    assert here.teacher.asked[("generator", 800)] == 0
    assert here.teacher.asked[("critic", 800)] == TASKS, "the revisions'"
    assert here.cost(made)["requests"] == sum(bought) + 2 * TASKS, "no record has billed them"


def test_the_embedded_teacher_is_asked_again_because_its_rules_are_code(here):
    embedded = {"generator": {}, "critic": {}, "reviser": {}}
    here.make(**embedded)
    made = here.make(**embedded, accept_score=4)
    assert "reused_requests" not in here.cost(made)
    assert here.cost(made)["requests"] > TASKS


def test_a_ledger_goes_when_a_record_holds_all_of_it_and_stays_with_an_answer_that_is_nowhere_else(here, tmp_path):
    here.teacher.broken = "reviser"
    with pytest.raises(EndpointError):
        here.make()
    (ledger,) = here.ledgers()
    here.teacher.broken = None
    there = Machine(tmp_path, here.teacher, "there")
    record = there.make()
    assert there.ledgers() == []
    with Ledger(ledger) as opened:
        held = len(opened)
        opened.put("paid for", "nowhere else")
    tidy_ledgers(here.run())
    assert ledger.exists()
    assert here.said[-1].endswith(f"kept, for 1 of its {held + 1} answers are in no record")
    whole = ledger.read_bytes()
    ledger.write_bytes(whole.replace(b" [", b" {", 1))
    tidy_ledgers(here.run())
    assert "kept: " in here.said[-1] and "the record at byte 0 is damaged" in here.said[-1]
    ledger.write_bytes(b"".join(whole.splitlines(True)[:-1]))
    tidy_ledgers(here.run())
    assert here.ledgers() == []
    assert here.said[-1].endswith(f"removed, its {held} answers are in record {record[:12]} (show/rollouts-sft-1-of-1)")
    assert not ledger.parent.exists()


def test_ledgers_of_keys_without_a_record_are_left_alone(here):
    here.teacher.broken = "reviser"
    with pytest.raises(EndpointError):
        here.make()
    before = here.ledgers()
    tidy_ledgers(here.run())
    assert here.ledgers() == before != []


def test_two_machines_with_stores_of_their_own_make_the_same_record(here, tmp_path):
    there = Machine(tmp_path / "elsewhere", here.teacher)
    assert here.make(concurrency=4) == there.make(concurrency=1)
