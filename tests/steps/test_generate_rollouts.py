import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from nanocode.config import ConstitutionConfig, DecontaminationConfig, EndpointConfig
from nanocode.constitution.faults import EndpointError
from nanocode.constitution.rules import adheres
from nanocode.constitution.soul import Soul
from nanocode.conversation import from_json
from nanocode.data.decontaminate import EvaluationItem, items_digest
from nanocode.serving.teacher import answer
from nanocode.tasks.registry import sample_tasks
from nanocode.tokenizer import Tokenizer
from steps.generate_rollouts import Inputs, Interrupted, PairSettings, run, shard_of_tasks, task_seed
from tests.steps.answering import answering

SOUL_PATH = Path(__file__).parents[2] / "configs" / "SOUL.md"
SOUL = Soul.load(SOUL_PATH)
TASKS = 8


def config(base_url=None, **changes):
    endpoint = EndpointConfig(base_url=base_url, max_attempts=1)
    values = {
        "sft_tasks": TASKS,
        "preference_tasks": TASKS,
        "generator": endpoint,
        "critic": endpoint,
        "reviser": endpoint,
    }
    return ConstitutionConfig(**values | changes)


def inputs(folder, split="sft", shard=(0, 1), pairs=None, name="out"):
    return Inputs(split, shard, SOUL_PATH, folder / name, folder / "ledger", pairs, environment={})


def rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def teacher():
    """The rule teacher in this process: counts equal requests, and can be told to fail."""

    class Teacher:
        def __init__(self):
            self.asked = Counter()
            self.fail = lambda number: None

        def reply(self, body, authorization):
            self.asked[body] += 1
            status = self.fail(self.asked.total())
            return status or 200, json.dumps(answer(body, SOUL) if status is None else {}).encode()

    state = Teacher()
    with answering(state.reply) as state.base_url:
        yield state


def test_both_registers_of_every_task_with_provenance_by_the_embedded_teacher(tmp_path):
    metrics = run(config(), 7, inputs(tmp_path))
    written = rows(tmp_path / "out" / "conversations.jsonl")
    tasks = sample_tasks("sft", TASKS, 7)
    assert [row["id"] for row in written] == [
        f"{task.id}/{register}" for task in tasks for register in ("stock", "soul")
    ]
    assert metrics["kept"] == TASKS == metrics["tasks"]
    assert metrics["conversations"] == {"stock": TASKS, "soul": TASKS}
    assert metrics["critic_agreement"] == 1.0
    assert metrics["adherence"] == 0.5
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == metrics
    for row in written:
        assert adheres(from_json(row["messages"]), SOUL) == (row["register"] == "soul")
        provenance = row["provenance"]
        assert (provenance["taught_by"], provenance["soul"]) == ("rules", SOUL.digest)
        assert [critique["score"] == 5 for critique in provenance["critiques"]] == [False, True]
        assert set(provenance["models"].values()) == {"nanocode-rules"}
        assert len(provenance["ledger_keys"]) >= 4


def test_pairs_pass_the_gate_on_token_ids(tmp_path, teacher):
    texts = [task.prompt + "".join(task.files.values()) for task in sample_tasks("sft", 200, 1)]
    Tokenizer.train(texts, 400).save(tmp_path / "tokenizer.json")
    settings = PairSettings(tmp_path / "tokenizer.json", 2_000)
    metrics = run(config(teacher.base_url), 7, inputs(tmp_path, "preference", pairs=settings))
    pairs = rows(tmp_path / "out" / "pairs.jsonl")
    assert len(pairs) == metrics["pairs"] == metrics["gate"]["kept"] > 0
    assert metrics["length_cohens_d"] is not None
    for pair in pairs:
        chosen, rejected = (from_json(pair[side]["messages"]) for side in ("chosen", "rejected"))
        assert adheres(chosen, SOUL)
        assert not adheres(rejected, SOUL)
        assert [message.tool_call for message in chosen] == [message.tool_call for message in rejected]
    tight = run(
        config(teacher.base_url),
        7,
        inputs(tmp_path, "preference", pairs=PairSettings(settings.tokenizer, 40), name="tight"),
    )
    assert tight["gate"]["a side is longer than the context"] > 0


def test_preference_needs_a_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="token ids"):
        run(config(), 7, inputs(tmp_path, "preference"))


def test_shards_together_are_the_whole_and_tasks_of_the_splits_differ(tmp_path):
    whole = shard_of_tasks(config(), 7, inputs(tmp_path))
    halves = [shard_of_tasks(config(), 7, inputs(tmp_path, shard=(index, 2))) for index in range(2)]
    assert sorted(task.id for half in halves for task in half) == sorted(task.id for task in whole)
    other = shard_of_tasks(config(), 7, inputs(tmp_path, "preference"))
    assert not {task.prompt for task in whole} & {task.prompt for task in other}
    with pytest.raises(ValueError, match="shard 2 of 2 does not exist"):
        shard_of_tasks(config(), 7, inputs(tmp_path, shard=(2, 2)))


def test_the_output_does_not_depend_on_concurrency(tmp_path, teacher):
    outputs = []
    for concurrency in (1, 8):
        folder = tmp_path / str(concurrency)
        run(config(teacher.base_url, concurrency=concurrency), 7, inputs(folder))
        outputs.append((folder / "out" / "conversations.jsonl").read_bytes())
    assert outputs[0] == outputs[1]


def test_a_second_start_asks_for_nothing_that_was_finished(tmp_path, teacher):
    reports = []
    with pytest.raises(Interrupted, match=f"of {TASKS} tasks finished: start again"):
        run(
            config(teacher.base_url, concurrency=2),
            7,
            inputs(tmp_path),
            report=lambda done, total: reports.append((done, total)),
            should_stop=lambda: len(reports) >= 3,
        )
    assert reports[:3] == [(1, TASKS), (2, TASKS), (3, TASKS)]
    asked = teacher.asked.total()
    assert asked > 0
    assert not (tmp_path / "out" / "conversations.jsonl").exists()
    run(config(teacher.base_url), 7, inputs(tmp_path))
    assert max(teacher.asked.values()) == 1
    uninterrupted = tmp_path / "other"
    run(config(teacher.base_url), 7, inputs(uninterrupted))
    assert max(teacher.asked.values()) == 2
    first, second = ((folder / "out" / "conversations.jsonl").read_bytes() for folder in (tmp_path, uninterrupted))
    assert first == second


def test_a_torn_ledger_costs_one_request(tmp_path, teacher):
    run(config(teacher.base_url), 7, inputs(tmp_path))
    before = teacher.asked.total()
    ledger = tmp_path / "ledger" / "sft-0-of-1.jsonl"
    ledger.write_bytes(ledger.read_bytes()[:-5])
    run(config(teacher.base_url), 7, inputs(tmp_path))
    assert teacher.asked.total() == before + 1


def test_a_refused_request_drops_one_task_and_is_counted(tmp_path, teacher):
    teacher.fail = lambda number: 400 if number == 5 else None
    metrics = run(config(teacher.base_url), 7, inputs(tmp_path))
    assert metrics["kept"] == TASKS - 1
    assert metrics["dropped"] == {"the endpoint refused a request": 1}


def test_tasks_lost_to_a_passing_fault_fail_the_stage_after_the_others_are_done(tmp_path, teacher):
    teacher.fail = lambda number: 503 if number == 5 else None
    with pytest.raises(EndpointError, match=rf"1 of {TASKS} tasks lack an answer .*status 503"):
        run(config(teacher.base_url), 7, inputs(tmp_path))
    assert run(config(teacher.base_url), 7, inputs(tmp_path))["kept"] == TASKS
    assert sorted(teacher.asked.values())[-2:] == [1, 2]


def test_an_endpoint_that_is_down_ends_the_stage_early(tmp_path, teacher):
    teacher.fail = lambda number: 503
    with pytest.raises(EndpointError, match="tasks got no answer, so the rest was not tried"):
        run(config(teacher.base_url, sft_tasks=60, concurrency=2), 7, inputs(tmp_path))
    assert teacher.asked.total() < 20


def test_a_tasks_seed_depends_on_run_and_task_and_fits_31_bits():
    first, second = sample_tasks("sft", 2, 7)
    seeds = {task_seed(run_seed, task) for run_seed in (1, 2) for task in (first, second)}
    assert len(seeds) == 4
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_every_task_family_can_be_taught(tmp_path):
    metrics = run(config(sft_tasks=40), 3, inputs(tmp_path))
    assert metrics["dropped"] == {}
    assert metrics["kept"] == 40


def test_what_the_generator_repeats_of_an_evaluation_is_dropped_and_counted(tmp_path, teacher):
    run(config(teacher.base_url), 7, inputs(tmp_path))
    spoken = rows(tmp_path / "out" / "conversations.jsonl")[0]["messages"][-1]["content"]
    (tmp_path / "evaluation.jsonl").write_text(json.dumps({"text": spoken}) + "\n")
    digest = items_digest([EvaluationItem("leaky/evaluation.jsonl#0", spoken)])
    sets = [{"name": "leaky", "glob": str(tmp_path / "evaluation.jsonl"), "sha256": digest}]
    decontamination = DecontaminationConfig.model_validate({"sets": sets, "words": 4, "min_words": 3})
    metrics = run(config(teacher.base_url), 7, replace(inputs(tmp_path), decontamination=decontamination))
    dropped = sum(count for reason, count in metrics["dropped"].items() if reason.endswith(": contaminated"))
    assert dropped >= 1
    assert metrics["kept"] == TASKS - dropped
