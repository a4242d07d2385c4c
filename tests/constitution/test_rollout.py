import asyncio
import json
from pathlib import Path

import pytest

from nanocode.config import ConstitutionConfig, EndpointConfig
from nanocode.constitution.accounts import Accounts
from nanocode.constitution.clients import open_clients
from nanocode.constitution.ledger import Ledger
from nanocode.constitution.pricing import prices_of
from nanocode.constitution.prompts import PARTS, part_of
from nanocode.constitution.rollout import Settings, roll_out, with_texts
from nanocode.constitution.soul import Soul
from nanocode.conversation import Message, ToolCall
from nanocode.serving.teacher import answer
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.situation import tools_for

SOUL = Soul.load(Path(__file__).parents[2] / "configs" / "SOUL.md")
TASK = sample_tasks("sft", 1, seed=3, families=["edit"])[0]


def settings(**changes):
    values = {"accept_score": 5, "max_revisions": 2, "max_turns": 6}
    return Settings(**values | changes, make_tools=lambda task, workspace: tools_for(task, workspace, None))


def taught(number, body):
    """What the rule teacher would answer, as an HTTP reply."""
    return 200, {}, json.dumps(answer(json.dumps(body).encode(), SOUL))


def says(text):
    message = {"role": "assistant", "content": text}
    return 200, {}, json.dumps({"model": "fake", "choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture
def run(fake_endpoint, tmp_path):
    """Roll out TASK against a server that answers by part: (answers by part, settings) -> (rollout, requests seen)."""

    def rolled_out(answers, chosen=None, task=TASK):
        def reply(number, body):
            part = part_of(body["messages"][0]["content"])
            return answers.get(part, taught)(number, body)

        config = ConstitutionConfig(
            sft_tasks=1, preference_tasks=1, concurrency=1, **{part: EndpointConfig(max_attempts=1) for part in PARTS}
        )

        async def main(base_url, ledger, accounts):
            async with open_clients(config, dict.fromkeys(PARTS, base_url), {}, ledger, accounts, 1) as clients:
                return await roll_out(task, clients, SOUL, chosen or settings(), seed=5)

        with (
            fake_endpoint(reply) as fake,
            Ledger(tmp_path / "ledger.jsonl") as ledger,
            Accounts(tmp_path / "ledger.accounts", ledger, prices_of(config)) as accounts,
        ):
            rollout = asyncio.run(main(fake.base_url, ledger, accounts))
            assert all(key in ledger for key in rollout.keys)
        return rollout, fake.seen

    return rolled_out


def test_a_draft_is_worked_out_with_real_tools_and_revised_until_accepted(run):
    rollout, _ = run({})
    assert rollout.dropped is None
    assert rollout.verdict.success
    assert [judgement.score == 5 for judgement in rollout.judgements] == [False, True]
    assert rollout.judgements[0].rule_score < 5
    assert [message.tool_call.name for message in rollout.draft if message.tool_call] == ["Read", "Edit"]
    assert rollout.draft[2].content.startswith("    1→")
    assert not rollout.draft_accepted


def test_the_accepted_version_differs_from_the_draft_in_assistant_texts_alone(run):
    rollout, _ = run({})
    silent = [with_texts(version, [""] * 3) for version in (rollout.draft, rollout.accepted)]
    assert silent[0] == silent[1]
    assert rollout.draft != rollout.accepted


def test_every_request_of_the_rollout_is_keyed(run):
    rollout, seen = run({})
    assert len(rollout.keys) == len(set(rollout.keys)) == len(seen) == 6
    assert dict(rollout.models) == dict.fromkeys(("critic", "generator", "reviser"), "nanocode-rules")


def test_a_draft_that_fails_its_task_is_dropped_before_anybody_judges_it(run):
    rollout, seen = run({"generator": lambda number, body: says("All done!")})
    assert rollout.dropped == "the draft failed its task"
    assert rollout.accepted is None
    assert len(seen) == 1


def test_a_generator_that_never_ends_is_dropped(run):
    call = {"function": {"name": "Read", "arguments": json.dumps({"file_path": "a.py"})}}
    body = json.dumps(
        {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
    )
    rollout, seen = run({"generator": lambda number, _: (200, {}, body)}, settings(max_turns=4))
    assert rollout.dropped == "the draft did not end within max_turns"
    assert len(seen) == 4
    assert rollout.draft[2].content.startswith("error: ")


def test_an_unreadable_critic_gets_one_repair_turn_and_is_then_unscored(run):
    rollout, seen = run({"critic": lambda number, body: says("five out of five")})
    assert rollout.dropped == "the critic's reply could not be read"
    assert [judgement.score for judgement in rollout.judgements] == [None]
    repair = seen[-1]["messages"]
    assert repair[-2] == {"role": "assistant", "content": "five out of five"}
    assert "could not be read" in repair[-1]["content"]
    assert len(seen) == 5


def test_a_repaired_critic_counts(run):
    def critic(number, body):
        if len(body["messages"]) == 2:
            return says("score: 5/5")
        return taught(number, body | {"messages": body["messages"][:2]})

    rollout, _ = run({"critic": critic})
    assert rollout.dropped is None
    assert len(rollout.keys) == 8


def test_a_critic_that_always_answers_five_does_not_get_its_way(run):
    full_marks = json.dumps({"score": 5, "violations": [], "critique": "lovely"})
    rollout, _ = run({"critic": lambda number, body: says(full_marks)})
    assert [judgement.rule_score == 5 for judgement in rollout.judgements] == [False, True]
    assert not rollout.judgements[0].accepted(5)
    assert rollout.accepted is not None


def test_a_reviser_that_answers_another_number_of_texts_is_refused_and_counted(run):
    rollout, _ = run({"reviser": lambda number, body: says('{"texts": ["one"]}')})
    assert rollout.refused_revisions == 2
    assert rollout.dropped == "no version was accepted"
    assert rollout.accepted is None


def test_a_revision_that_loses_the_facts_is_dropped(run):
    texts = json.dumps({"texts": ["reading.", "editing.", "the file says so now."]})
    rollout, _ = run({"reviser": lambda number, body: says(texts)})
    assert rollout.dropped == "the revision failed the task"


def test_a_reviser_that_changes_nothing_ends_after_max_revisions(run):
    def reviser(number, body):
        conversation = json.loads(body["messages"][1]["content"])["conversation"]
        return says(json.dumps({"texts": [m["content"] for m in conversation if m["role"] == "assistant"]}))

    rollout, _ = run({"reviser": reviser})
    assert rollout.dropped == "no version was accepted"
    assert len(rollout.judgements) == 3


def test_a_draft_that_keeps_the_constitution_needs_no_reviser(run):
    def generator(number, body):
        reply = json.loads(taught(number, body)[2])
        message = reply["choices"][0]["message"]
        message["content"] = f"{TASK.expect.facts[0]} is {TASK.expect.facts[1]} in {next(iter(TASK.files))}."
        return 200, {}, json.dumps(reply)

    rollout, _ = run({"generator": generator})
    assert rollout.draft_accepted
    assert len(rollout.judgements) == 1


def test_texts_replace_in_order_and_must_be_as_many():
    call = ToolCall("Read", {"file_path": "a"})
    before = [
        Message("user", "u"),
        Message("assistant", "1", call),
        Message("tool_result", "r"),
        Message("assistant", "2"),
    ]
    after = with_texts(before, ["one", "two"])
    assert [message.content for message in after] == ["u", "one", "r", "two"]
    assert after[1].tool_call is call
    with pytest.raises(ValueError, match="argument 2 is"):
        with_texts(before, ["one"])
