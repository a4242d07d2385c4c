"""The funnel: which stage of which call is lost, against the expert's own calls."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nanocode.agent.results import ToolResult
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable
from nanocode.agent.session import CallFinished
from nanocode.conversation import Message, ToolCall
from nanocode.evaluation.agent_tasks import Episode, is_valid, work_on
from nanocode.evaluation.funnel import STAGES, Passage, funnel, passage
from nanocode.evaluation.references import references
from nanocode.tasks.registry import FAMILIES, respond, sample_tasks
from nanocode.tasks.task import Expectation, Task, TaskError, Verdict

READ = ToolCall("Read", {"file_path": "a.py"})
GREP = ToolCall("Grep", {"pattern": "BIG"})
EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})
BASH = ToolCall("Bash", {"command": "python test_a.py"})
RIGHT = (READ, EDIT, BASH)


def task(*tools: str, files: dict[str, str] | None = None) -> Task:
    expect = Expectation(files=files or {}, facts=(), tools=tools)
    return Task.make(
        family="edit", variant="v", held_out_variant=False, split="eval", prompt="p", files=files or {}, expect=expect
    )


NEEDING = task("Read|Grep", "Edit|Bash", "Bash")
NEEDLESS = task()


def finished(*calls: ToolCall, result: ToolResult | None = None) -> tuple[CallFinished, ...]:
    return tuple(CallFinished(call, result or ToolResult("fine", ok=True)) for call in calls)


def episode(*calls: ToolCall, of: Task = NEEDING, malformed: int = 0, solved: bool = False, **more: object) -> Episode:
    made = finished(*calls)
    stop = "malformed" if malformed else "finished"
    said = [Message("assistant", "", call) for call in calls] + [Message("assistant", "done")] * (not malformed)
    valid = sum(is_valid(call) for call in calls)
    verdict = Verdict(solved, (), not malformed, True, solved, solved, len(calls))
    return replace(Episode(of, tuple(said), verdict, len(calls) + malformed, valid, stop, made), **more)


def counts(found: Passage) -> tuple[int | None, ...]:
    return tuple(getattr(found, stage) for stage in STAGES)


@pytest.mark.parametrize(
    ("calls", "malformed", "expected"),
    [
        ((READ, EDIT, BASH), 0, (3, 3, 3, 3, 3, 3, 3)),
        ((), 0, (0, 0, 0, 0, 0, 0, 0)),
        ((READ,), 1, (2, 1, 1, 1, 1, 1, 1)),
        ((ToolCall("Open", {"file_path": "a.py"}),), 0, (1, 1, 0, 0, 0, 0, 1)),
        ((ToolCall("Read", {"path": "a.py"}),), 0, (1, 1, 1, 0, 0, 0, 1)),
        ((GREP, EDIT, BASH), 0, (3, 3, 3, 3, 3, 2, 3)),  # Grep is accepted for Read, but has not its arguments
        ((ToolCall("Read", {"file_path": "apy"}), EDIT, BASH), 0, (3, 3, 3, 3, 3, 2, 3)),
        ((READ, READ, EDIT, BASH), 0, (4, 4, 4, 4, 3, 3, 4)),
        ((BASH, EDIT, READ), 0, (3, 3, 3, 3, 2, 1, 3)),  # Bash may stand for the Edit; the order counts
    ],
)
def test_each_stage_is_counted(calls: tuple[ToolCall, ...], malformed: int, expected: tuple[int, ...]) -> None:
    assert counts(passage(episode(*calls, malformed=malformed), finished(*RIGHT))) == expected


def test_arguments_are_compared_byte_for_byte_but_not_by_their_order() -> None:
    shuffled = ToolCall("Edit", dict(reversed(EDIT.arguments.items())))
    spaced = ToolCall("Edit", {**EDIT.arguments, "old_string": "1 "})
    longer = ToolCall("Read", {"file_path": "a.py", "offset": "1"})
    for call, right in ((shuffled, 1), (spaced, 0), (longer, 0)):
        assert passage(episode(call), finished(EDIT, READ)).right_arguments == right


def test_a_call_runs_without_error_unless_the_expert_meets_the_same_one() -> None:
    error = ToolResult("error: no such file", ok=False)
    met = replace(episode(READ), made=finished(READ, result=error))
    assert passage(met, finished(READ)).executed == 0
    assert passage(met, finished(READ, result=error)).executed == 1
    assert passage(met, finished(GREP, result=error)).executed == 0


def test_a_command_that_ran_is_no_error_whatever_its_exit_code() -> None:
    failed_test = replace(episode(BASH), made=finished(BASH, result=ToolResult("1 failed\nexit code 1", False, 1)))
    refused = replace(episode(BASH), made=finished(BASH, result=ToolResult("error: refused", False)))
    assert (passage(failed_test, None).executed, passage(refused, None).executed) == (1, 0)


def test_the_same_call_with_the_same_result_right_after_itself_repeats() -> None:
    rerun = (*finished(BASH), *finished(BASH, result=ToolResult("ok", ok=True)))
    assert passage(replace(episode(BASH, BASH), made=rerun), None).repeated == 0
    assert passage(episode(READ, READ, READ, EDIT, READ), None).repeated == 2


def test_the_whole_funnel_with_n() -> None:
    episodes = [
        episode(*RIGHT, solved=True, cut_replies=0),
        episode(GREP, EDIT, BASH, solved=True, cut_replies=0),
        episode(READ, malformed=1, cut_replies=1),
        episode(READ, READ, stop_reason="max_turns", cut_replies=0),
        episode(cut_replies=0),
        episode(of=NEEDLESS, solved=True, cut_replies=0),
        episode(READ, of=NEEDLESS, cut_replies=0),
    ]
    found = funnel(episodes, {NEEDING.id: finished(*RIGHT), NEEDLESS.id: ()})
    assert {name: (rate.hits, rate.n) for name, rate in found.tasks.items()} == {
        "attempted": (4, 5),
        "parsed": (3, 5),
        "known_tool": (3, 5),
        "valid_arguments": (3, 5),
        "right_tool": (2, 5),
        "right_arguments": (1, 5),
        "executed": (3, 5),
        "solved": (2, 5),
    }
    assert {name: (rate.hits, rate.n) for name, rate in found.calls.items()} == {
        "parsed": (10, 11),
        "known_tool": (10, 11),
        "valid_arguments": (10, 11),
        "right_tool": (8, 11),
        "right_arguments": (7, 11),
        "executed": (10, 11),
    }
    assert (found.calls_a_task.value, found.calls_a_task.n) == (11 / 7, 7)
    assert found.turns_a_task.value == (4 + 4 + 2 + 3 + 1 + 1 + 2) / 7
    rates = (found.overruns, found.cut_replies, found.repeated_calls, found.called_needlessly, found.never_called)
    assert [(rate.hits, rate.n) for rate in rates if rate] == [(1, 7), (1, 7), (1, 11), (1, 2), (1, 5)]
    assert set(found.to_json()) == set(found.__dataclass_fields__)


@pytest.mark.parametrize(
    ("reason", "overrun"),
    [("finished", 0), ("malformed", 0), ("repeated", 0), ("max_turns", 1), ("context", 1), ("time", 1), ("length", 1)],
)
def test_an_overrun_is_an_end_by_a_bound(reason: str, overrun: int) -> None:
    assert funnel([episode(READ, stop_reason=reason)], None).overruns.hits == overrun


def test_without_an_expert_nothing_is_said_about_right_calls() -> None:
    found = funnel([episode(READ)], None)
    assert not [stage for stage in (*found.tasks, *found.calls) if stage.startswith("right")]
    assert "right_tool" not in passage(episode(READ), None).to_json()
    assert found.cut_replies is None


@pytest.fixture(scope="module")
def tasks() -> list[Task]:
    try:
        Sandbox().check()
    except SandboxUnavailable:
        return sample_tasks("eval", 24, 1, sorted(set(FAMILIES) - {"fix", "run"}))
    return sample_tasks("eval", 24, 1)


class Expert:
    def respond(self, conversation: list[Message]) -> Message:
        return respond(conversation, "stock", 1)


def test_the_expert_passes_every_stage_of_every_task(tasks: list[Task]) -> None:
    episodes = [work_on(task, Expert(), Sandbox(), max_turns=8) for task in tasks]
    found = funnel(episodes, references(tasks))
    for name, rate in {**found.tasks, **found.calls}.items():
        assert rate.value == 1.0, name
        assert rate.n >= sum(bool(task.expect.tools) for task in tasks) > 0
    assert found.never_called.hits == found.called_needlessly.hits == found.overruns.hits == 0


def test_a_task_that_the_expert_does_not_solve_has_no_reference() -> None:
    (solvable,) = sample_tasks("eval", 1, 0, ["read"])
    with pytest.raises(TaskError, match=f"does not solve task {solvable.id}"):
        references([replace(solvable, expect=replace(solvable.expect, facts=("never said",)))])
