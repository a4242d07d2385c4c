"""Instruction sets through the constitutional loop, judged and revised by the rule teacher."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.build import Build, RunInfo, Stage
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.agent.policy import Policy
from nanocode.agent.tools import Toolbox
from nanocode.config import Config, ConstitutionConfig, EndpointConfig, InstructionSource
from nanocode.constitution.accounts import BudgetError
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.prompts import part_of
from nanocode.constitution.rules import adheres
from nanocode.constitution.soul import Soul
from nanocode.conversation import Message, from_json, to_json
from nanocode.serving.teacher import answer
from nanocode.tasks.registry import respond, sample_tasks
from nanocode.tasks.task import Task, prepare
from nanocode.tokenizer import Tokenizer
from steps import restyle_instructions as stage
from steps.constitutional import Watching, share_of_budget
from steps.pipeline import Run, convert_instructions, gather_rollouts, import_soul, restyle_instructions
from steps.pipeline.generated import generated
from steps.pipeline.survey import walk
from tests.steps.answering import answering

SOUL_PATH = Path(__file__).parents[2] / "configs" / "SOUL.md"
SOUL = Soul.load(SOUL_PATH)
ROWS = 24
REVISION = "0123456789" * 4
LICENCES = ("Apache-2.0", "MIT")


def stock(task: Task, workspace: Path) -> list[Message]:
    """The expert's conversation in the stock register, with the results of real tools."""
    prepare(task, workspace)
    toolbox, conversation = Toolbox(workspace, Policy("auto"), None), [Message("user", task.prompt)]
    while conversation[-1].role != "assistant":
        said = respond(conversation, "stock", 0)
        conversation.append(said)
        if said.tool_call is not None:
            conversation.append(Message("tool_result", toolbox.execute(said.tool_call).text))
    return conversation


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    return sample_tasks("sft", ROWS, 5, families=["edit", "read", "grep"])


@pytest.fixture(scope="module")
def rows(tasks: list[Task], tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """A converted set, as the conversion stage writes it."""
    folder = tmp_path_factory.mktemp("workspaces")
    return [
        {
            "id": f"own/x.jsonl#{number}",
            "family": "own",
            "variant": "messages",
            "register": "stock",
            "messages": to_json(stock(task, folder / str(number))),
            "provenance": {
                "set": "own",
                "revision": REVISION,
                "row": f"x.jsonl#{number}",
                "licence": LICENCES[number % 2],
                "notes": {},
            },
        }
        for number, task in enumerate(tasks)
    ]


@pytest.fixture(scope="module")
def converted(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted")
    write(folder / "conversations.jsonl", rows)
    return folder


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.open(encoding="utf-8")]


@pytest.fixture(scope="module")
def tokenizer(rows: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    Tokenizer.train([json.dumps(row["messages"]) for row in rows], 320).save(folder / "tokenizer.json")
    return folder


class Teacher:
    """The rule teacher in this process; `change` may alter what a part says."""

    def __init__(self) -> None:
        self.asked: Counter[str | None] = Counter()
        self.change: Any = lambda part, number, content: content

    def reply(self, body: bytes, authorization: str) -> tuple[int, bytes]:
        part = part_of(json.loads(body)["messages"][0]["content"])
        self.asked[part] += 1
        completion = answer(body, SOUL)
        message = completion["choices"][0]["message"]
        message["content"] = self.change(part, self.asked[part], message["content"])
        return (503 if message["content"] is None else 200), json.dumps(completion).encode()


@pytest.fixture
def teacher():
    state = Teacher()
    with answering(state.reply) as state.base_url:
        yield state


def source(**changes: Any) -> InstructionSource:
    values = {"name": "own", "kind": "messages", "licence": "MIT", "glob": "x.jsonl", "restyle": True}
    return InstructionSource.model_validate(values | changes)


@pytest.fixture
def restyled(teacher, converted, tokenizer, tmp_path):
    """Run one split of the stage: its metrics and its rows."""

    def run(split: stage.Split, context: int = 4_000, of: Path = converted, **constitution: Any):
        endpoint = EndpointConfig(base_url=teacher.base_url, max_attempts=1)
        absent = EndpointConfig(base_url="http://127.0.0.1:9", api_key_env="NOT_SET")
        parts = {"generator": absent, "critic": endpoint, "reviser": endpoint}
        config = ConstitutionConfig.model_validate(
            {"sft_tasks": 1, "preference_tasks": 1, "sources": [source(max_rows=ROWS)]} | parts | constitution
        )
        inputs = stage.Inputs(
            split, of, SOUL_PATH, tokenizer, context, tmp_path / split, tmp_path / "ledger", environment={}
        )
        metrics = stage.run(config, source(), 7, inputs, Watching())
        assert json.loads((tmp_path / split / "report.json").read_text()) == metrics
        name = "conversations.jsonl" if split == "sft" else "pairs.jsonl"
        return metrics, read(tmp_path / split / name)

    return run


def calls(messages: list[Message]) -> list[Any]:
    return [(message.role, message.tool_call, message.content) for message in messages if message.role != "assistant"]


def test_accepted_versions_train_and_say_the_same_calls_in_other_words(restyled, rows):
    metrics, made = restyled("sft")
    originals = {row["id"]: from_json(row["messages"]) for row in rows}
    assert len(made) == metrics["gate"]["kept"] == metrics["kept"] > ROWS / 2
    for row in made:
        draft, accepted = originals[row["provenance"]["task"]], from_json(row["messages"])
        assert row["id"] == row["provenance"]["task"] + "/soul"
        assert not adheres(draft, SOUL) and adheres(accepted, SOUL)
        assert [each.tool_call for each in accepted] == [each.tool_call for each in draft]
        assert calls(accepted) == calls(draft), "results are those that were executed"
        provenance = row["provenance"]
        assert (provenance["set"], provenance["taught_by"]) == ("own", "rules")
        assert [critique["rule_score"] == 5 for critique in provenance["critiques"]] == [False, True]
        assert len(provenance["ledger_keys"]) == 3, "critic, reviser, critic"


def test_pairs_are_of_other_rows_and_prefer_the_revision_to_the_set_s_own_words(restyled, rows):
    _, accepted = restyled("sft")
    metrics, pairs = restyled("preference")
    assert len(pairs) == metrics["gate"]["kept"] > 0
    originals = {row["id"]: row["messages"] for row in rows}
    assert {pair["task"] for pair in pairs} | {row["provenance"]["task"] for row in accepted} == set(originals)
    assert not {pair["task"] for pair in pairs} & {row["provenance"]["task"] for row in accepted}
    for pair in pairs:
        chosen, rejected = (from_json(pair[side]["messages"]) for side in ("chosen", "rejected"))
        assert pair["rejected"]["messages"] == originals[pair["task"]]
        assert adheres(chosen, SOUL) and not adheres(rejected, SOUL)
        assert [each.tool_call for each in chosen] == [each.tool_call for each in rejected]


@pytest.mark.parametrize("split", ["sft", "preference"])
def test_the_metrics_name_licence_set_and_revision_of_all_that_was_kept(restyled, split):
    metrics, made = restyled(split)
    kept = Counter(row["provenance"]["licence"] for row in made)
    assert set(kept) == set(LICENCES)
    assert metrics["licences"] == dict(kept)
    assert metrics["sources"] == {f"own@{REVISION}": len(made)}


def test_a_second_start_asks_only_for_what_is_missing(restyled, teacher):
    teacher.change = lambda part, number, content: None if part == "reviser" and number == 4 else content
    with pytest.raises(EndpointError, match=r"1 of .* tasks lack an answer"):
        restyled("sft")
    asked = teacher.asked.total()
    teacher.change = lambda part, number, content: content
    restyled("sft")
    assert teacher.asked.total() == asked + 2, "the revision that failed, and its critique"


def test_what_is_not_accepted_or_too_long_is_counted_and_left_out(restyled, teacher):
    whole, _ = restyled("sft")
    metrics, made = restyled("sft", context=250)
    assert metrics["gate"]["longer than the context"] + metrics["gate"].get("kept", 0) == whole["kept"]
    assert len(made) == metrics["gate"].get("kept", 0) < whole["kept"]


def test_a_set_of_which_nothing_is_accepted_says_why(restyled, teacher):
    teacher.change = lambda part, number, content: (
        content.upper().replace("TEXTS", "texts") if part == "reviser" else content
    )
    with pytest.raises(stage.NothingAccepted, match=r"'own' was accepted; dropped: .*own: no version was accepted"):
        restyled("sft", max_revisions=1)


def test_a_revision_that_changes_the_code_it_shows_is_dropped(restyled, teacher, tmp_path, rows):
    shown = "Here it is!\n```python\nx = 1\n```\n"
    messages = [{"role": "user", "content": "Show x."}, {"role": "assistant", "content": shown}]
    own = [row | {"messages": messages, "id": f"own/{number}"} for number, row in enumerate(rows[:8])]
    folder = tmp_path / "shown"
    folder.mkdir()
    write(folder / "conversations.jsonl", own)

    def reply(body: bytes, authorization: str) -> tuple[int, bytes]:
        """The teacher as critic; it knows no such conversation to revise."""
        if part_of(json.loads(body)["messages"][0]["content"]) != "reviser":
            return teacher.reply(body, authorization)
        teacher.asked["reviser"] += 1
        value = 1 + teacher.asked["reviser"] % 2
        text = f"this is x:\n```python\nx = {value}\n```\n"
        said = {"role": "assistant", "content": json.dumps({"texts": [text]})}
        return 200, json.dumps({"model": "nanocode-rules", "choices": [{"message": said}]}).encode()

    with answering(reply) as teacher.base_url:
        metrics, made = restyled("sft", of=folder)
    assert metrics["dropped"]["own: the revision changed shown code"] + len(made) == metrics["tasks"]
    assert made
    assert all("```python\nx = 1\n```" in row["messages"][-1]["content"] for row in made)


def test_a_budget_is_shared_with_the_rollouts_and_ends_the_stage(restyled):
    config = ConstitutionConfig(
        sft_tasks=10,
        preference_tasks=10,
        max_tokens=1_000,
        sources=(source(max_rows=20), source(name="b", max_rows=60)),
    )
    assert [share_of_budget(config, tasks).tokens for tasks in (10, 20, 60)] == [100, 200, 600]
    with pytest.raises(ValidationError, match="how many own has is unknown: give its max_rows"):
        ConstitutionConfig(sft_tasks=1, preference_tasks=1, max_tokens=9, sources=(source(),))
    with pytest.raises(BudgetError, match="used up"):
        restyled("sft", max_tokens=20_000)


@pytest.fixture
def run(teacher, rows, tasks, tmp_path):
    """A run whose config names the set, whose rows bring their workspaces."""
    path = tmp_path / "own.jsonl"
    write(path, [{"messages": row["messages"], "files": dict(task.files)} for row, task in zip(rows, tasks)])  # noqa: B905

    def opened(**changes: Any) -> Run:
        endpoint = {"base_url": teacher.base_url, "max_attempts": 1}
        of = {"name": "own", "kind": "messages", "licence": "MIT", "glob": str(path), "near_duplicate_threshold": 1}
        values = {
            "name": "show",
            "data": {"sources": [{"name": "docs", "kind": "python_docs"}]},
            "model": {"depth": 1, "context_tokens": 4_096},
            "constitution": {
                "sft_tasks": 1,
                "preference_tasks": 1,
                "sources": [of | changes],
                **dict.fromkeys(("generator", "critic", "reviser"), endpoint),
            },
        }
        repository = Repository(open_store(f"file:{tmp_path / 'store'}", tmp_path))
        info = RunInfo("Test", "1", "tester")
        return Run(Config.model_validate(values), repository, info, say=lambda line: None, work=tmp_path / "work")

    return opened


def learned(run: Run, rows: list[dict[str, Any]]) -> str:
    def produce(making: Build) -> None:
        Tokenizer.train([json.dumps(row["messages"]) for row in rows], 320).save(making.output / "tokenizer.json")

    return run.make(Stage("fit_tokenizer", "tokenizer", "show/tokenizer", "steps.fit_tokenizer", {}), produce)


def test_a_set_becomes_conversations_and_pairs_of_a_run_with_their_cost(run, rows, tmp_path, teacher):
    asking = run(restyle=True)
    tokenizer, soul = learned(asking, rows), import_soul(asking)
    sets = convert_instructions(asking, tokenizer)
    made = {split: restyle_instructions(asking, split, sets, tokenizer, soul)["own"] for split in ("sft", "preference")}
    record = asking.repository.read_record(made["sft"])
    assert (record.step, record.kind, record.name) == ("restyle_instructions", "restyled", "show/restyled-own-sft")
    assert {file.path for file in record.files} == {
        "calibration.json", "calls.jsonl.gz", "conversations.jsonl", "report.json",
    }  # fmt: skip
    cost = asking.repository.provenances(made["sft"])[-1].cost
    assert cost["requests"] > 0 and cost["tokens_in"] > 0
    pairs = gather_rollouts(asking, "preference", [made["preference"]])
    shown = generated(asking.repository, pairs)
    assert shown.counts["accepted at attempt"]["2"] > 0
    assert shown.cost["requests"] > 0
    metrics = asking.repository.provenances(pairs)[-1].metrics
    assert metrics["licences"] == shown.counts["licences"] == {"MIT": metrics["pairs"]}
    assert metrics["sources"] == shown.counts["sources"] == {"own": metrics["pairs"]}
    asked = teacher.asked.total()
    again = {
        split: restyle_instructions(asking, split, sets, tokenizer, soul)["own"] for split in ("sft", "preference")
    }
    assert (again, teacher.asked.total()) == (made, asked)


def test_unless_asked_for_no_set_is_restyled_and_converting_knows_nothing_of_it(run, rows):
    plain, asking = run(), run(restyle=True, preference_share=0.0)
    tokenizer = learned(plain, rows)
    sets = convert_instructions(plain, tokenizer)
    assert convert_instructions(asking, tokenizer) == sets
    assert restyle_instructions(plain, "sft", sets, tokenizer, "no soul") == {}
    assert restyle_instructions(asking, "preference", sets, tokenizer, "no soul") == {}


@dataclass(frozen=True)
class Noted(Run):
    """A run that only notes its stages."""

    stages: dict[str, Stage] = field(default_factory=dict)

    def make(self, stage: Stage, produce: Any) -> str:
        del produce
        self.stages[stage.name.partition("/")[2]] = stage
        return stage.name


def wired(config: Config) -> dict[str, Stage]:
    noted = Noted(config, None, RunInfo("", "", ""))  # type: ignore[arg-type]  # asked for nothing
    walk(noted, lambda _, name: f"shards-{name}")
    return noted.stages


def test_sft_trains_on_the_restyled_set_by_its_weight_and_its_pairs_join_those_of_the_rollouts(run):
    plain, asking = wired(run(weight=0.5).config), wired(run(weight=0.5, restyle=True).config)
    assert set(asking) - set(plain) == {"restyled-own-sft", "restyled-own-preference"}
    assert plain["sft"].inputs["instructions.own"] == "show/instructions-own"
    assert asking["sft"].inputs["instructions.own"] == "show/restyled-own-sft"
    assert asking["sft"].config == plain["sft"].config
    assert "show/restyled-own-preference" in asking["data-preference"].inputs.values()
    assert {name for name in plain if plain[name] != asking[name]} == {"sft", "data-preference"}
    assert asking["restyled-own-sft"].inputs["instructions"] == "show/instructions-own"
