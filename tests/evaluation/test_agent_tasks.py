from __future__ import annotations

import json
from typing import Any

import pytest

from nanocode.agent.sandbox import Sandbox, SandboxUnavailable
from nanocode.conversation import Message, ToolCall, assistant_ids
from nanocode.evaluation.agent_tasks import Episode, Summary, is_valid, run_tasks, summarise
from nanocode.tasks.registry import FAMILIES, respond, sample_tasks
from nanocode.tasks.task import Task, Verdict
from nanocode.tokenizer import Tokenizer

WITH_BASH = {"fix", "run"}


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    """Thirty-two held-out tasks; where this machine has no sandbox, none that runs a command."""
    try:
        Sandbox().check()
    except SandboxUnavailable:
        return sample_tasks("eval", 32, 1, sorted(set(FAMILIES) - WITH_BASH))
    return sample_tasks("eval", 32, 1)


def play(engine: Any, tasks: list[Task], within: Any, max_turns: int = 8, **help: Any) -> list[Episode]:
    settings = {"temperature": 0.0, "max_turns": max_turns, "max_new_tokens": 64, "seed": 0, **help}
    return within(60, lambda: run_tasks(engine, tasks, **settings))


def test_the_expert_solves_every_task(scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any) -> None:
    engine = scripted(lambda conversation, stream: assistant_ids(respond(conversation, "soul", stream), tokenizer))
    episodes = play(engine, tasks, within)
    summary = summarise(episodes)
    assert [episode.task for episode in episodes] == tasks
    assert [episode.verdict.reasons for episode in episodes] == [()] * len(tasks)
    for rate in (summary.success, summary.valid_calls, summary.called_when_needed, summary.finished):
        assert rate.value == 1.0
    assert summary.success.n == len(tasks)
    assert summary.valid_calls.n == sum(episode.calls for episode in episodes) > len(tasks)
    assert summary.stop_reasons == {"finished": len(tasks)}
    assert set(summary.by_variant) == {"known", "held_out"}
    assert sum(rate.n for rate in summary.by_family.values()) == len(tasks)


def needing_tools(tasks: list[Task]) -> int:
    return sum(bool(task.expect.tools) for task in tasks)


@pytest.mark.parametrize("text", ["", "done!"])
def test_a_model_that_never_calls_has_no_valid_calls(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any, text: str
) -> None:
    """Silence is not perfection: a task that needs a tool counts as one failed attempt."""
    engine = scripted(lambda conversation, stream: assistant_ids(Message("assistant", text), tokenizer))
    summary = summarise(play(engine, tasks, within))
    assert (summary.valid_calls.hits, summary.valid_calls.n) == (0, needing_tools(tasks))
    assert (summary.called_when_needed.hits, summary.called_when_needed.n) == (0, needing_tools(tasks))
    assert summary.success.value == 0
    assert summary.finished.value == 1.0


def test_malformed_calls_are_counted_as_attempts(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any
) -> None:
    special = tokenizer.special
    unclosed = [special["<|tool_call_start|>"], *tokenizer.encode("Read"), special["<|assistant_end|>"]]
    summary = summarise(play(scripted(lambda conversation, stream: unclosed), tasks, within))
    assert (summary.valid_calls.hits, summary.valid_calls.n) == (0, len(tasks))
    assert summary.stop_reasons == {"malformed": len(tasks)}
    assert summary.success.value == summary.finished.value == 0


def test_an_expert_whose_second_reply_is_malformed_has_its_first_call_counted(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any
) -> None:
    def reply(conversation: list[Message], stream: int) -> list[int]:
        if len(conversation) == 1:
            return assistant_ids(respond(conversation, "stock"), tokenizer)
        return [tokenizer.special["<|tool_call_start|>"]]

    episodes = play(scripted(reply), tasks, within)
    called = [episode for episode in episodes if episode.stop_reason == "malformed"]
    assert len(called) >= needing_tools(tasks) > 0
    assert {(episode.calls, episode.valid_calls) for episode in called} == {(2, 1)}
    assert summarise(called).valid_calls.value == 0.5


def test_a_malformed_call_that_is_told_to_the_model_counts_as_invalid_although_it_was_salvaged(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any
) -> None:
    read = Message("assistant", "", ToolCall("Read", {"file_path": "none"}))
    doubled = [*assistant_ids(read, tokenizer)[:-1], tokenizer.special["<|tool_call_start|>"]]
    done = assistant_ids(Message("assistant", "done"), tokenizer)
    engine = scripted(lambda conversation, stream: [doubled, doubled, done][len(conversation) // 2])
    episodes = play(engine, tasks[:4], within, max_malformed=3)
    assert [(episode.calls, episode.valid_calls, episode.stop_reason) for episode in episodes] == [
        (2, 0, "finished")
    ] * 4
    assert all(is_valid(episode.conversation[1].tool_call) for episode in episodes)


@pytest.mark.parametrize(("elide", "reason"), [(False, "context"), (True, "max_turns")])
def test_old_results_make_room_only_when_asked_to(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any, elide: bool, reason: str
) -> None:
    def reply(conversation: list[Message], stream: int) -> list[int]:
        call = ToolCall("n" * 40, {"turn": str(len(conversation))})
        return assistant_ids(Message("assistant", "", call), tokenizer)

    prompt = max(len(tokenizer.encode(task.prompt)) for task in tasks[:2])
    engine = scripted(reply, context_tokens=prompt + 720)
    episodes = play(engine, tasks[:2], within, max_turns=8, elide=elide)
    assert {episode.stop_reason for episode in episodes} == {reason}


def test_calls_that_no_tool_takes_are_attempts_but_not_valid(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any
) -> None:
    call = Message("assistant", "", ToolCall("Open", {"file": "a.py"}))
    episodes = play(
        scripted(lambda conversation, stream: assistant_ids(call, tokenizer)), tasks[:4], within, max_turns=2
    )
    assert [(episode.calls, episode.valid_calls) for episode in episodes] == [(2, 0)] * 4
    assert summarise(episodes).stop_reasons == {"max_turns": 4}


def test_a_context_too_small_for_a_prompt_ends_the_episode(
    scripted: Any, tokenizer: Tokenizer, tasks: list[Task], within: Any
) -> None:
    engine = scripted(lambda conversation, stream: [], context_tokens=8)
    assert summarise(play(engine, tasks[:3], within)).stop_reasons == {"context": 3}
    assert engine.batches == []


@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("Read", {"file_path": "a.py"}, True),
        ("Read", {"file_path": "a.py", "offset": "3", "limit": "2"}, True),
        ("Read", {}, False),
        ("Read", {"offset": "3"}, False),
        ("Read", {"file_path": "a.py", "encoding": "utf-8"}, False),
        ("read", {"file_path": "a.py"}, False),
        ("Edit", {"file_path": "a.py", "new_string": ""}, True),
        ("Edit", {"file_path": "a.py", "old_string": "x"}, False),
        ("Grep", {"pattern": "x", "path": "lib"}, True),
        ("Bash", {"command": "ls"}, True),
        ("Bash", {"cmd": "ls"}, False),
        ("", {}, False),
    ],
)
def test_a_valid_call_gives_a_known_tool_what_it_takes(name: str, arguments: dict[str, str], valid: bool) -> None:
    assert is_valid(ToolCall(name, arguments)) is valid


def episode(
    task: Task, *, success: bool = False, called: bool = False, calls: int = 0, valid: int = 0, stop: str = "finished"
) -> Episode:
    verdict = Verdict(success, () if success else ("wrong",), stop == "finished", called, success, success, calls)
    return Episode(task, (), verdict, calls, valid, stop)


def test_the_summary_counts_what_its_names_say(tasks: list[Task]) -> None:
    needing = [task for task in tasks if task.expect.tools]
    needless = next(task for task in tasks if not task.expect.tools)
    summary = summarise(
        [
            episode(needing[0], success=True, called=True, calls=3, valid=3),
            episode(needing[1], called=True, calls=2, valid=1, stop="max_turns"),
            episode(needing[2]),
            episode(needless, success=True, called=True),
        ]
    )
    assert (summary.success.hits, summary.success.n) == (2, 4)
    assert (summary.valid_calls.hits, summary.valid_calls.n) == (4, 3 + 2 + 1)
    assert (summary.called_when_needed.hits, summary.called_when_needed.n) == (2, 3)
    assert (summary.finished.hits, summary.finished.n) == (3, 4)
    assert summary.stop_reasons == {"finished": 3, "max_turns": 1}


def test_a_summary_is_plain_json_in_sorted_order(tasks: list[Task]) -> None:
    shown = summarise([episode(task) for task in tasks]).to_json()
    assert json.loads(json.dumps(shown)) == shown
    assert list(shown["by_family"]) == sorted(shown["by_family"])
    assert set(shown) == set(Summary.__dataclass_fields__)
