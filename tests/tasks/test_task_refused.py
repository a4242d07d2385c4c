"""The refused family: the call is made and really comes to nothing, and only an answer that says so is right."""

from collections import Counter
from dataclasses import replace

import pytest

from nanocode.conversation import Message, ToolCall
from nanocode.tasks.failures import reason_of, report_failure
from nanocode.tasks.families import refused
from nanocode.tasks.family import Step, Voice
from nanocode.tasks.registry import FAMILIES, respond, sample_tasks
from nanocode.tasks.task import REGISTERS, Task, check


def tasks_of(n, split="sft"):
    return sample_tasks(split, n, seed=5, families=["refused"])


def test_the_last_call_is_refused_or_fails_and_nothing_has_changed(play):
    for index, task in enumerate(tasks_of(60)):
        episode = play(task, "soul", index)
        assert episode.verdict.success, episode.conversation
        result = episode.conversation[-2].content
        assert result.startswith("error: ")
        untested = task.variant.startswith("fix-") and task.consent == "no_bash"
        left = {path.name: path.read_text() for path in episode.workspace.iterdir() if path.is_file()}
        assert (left == {**task.files, **task.meanwhile}) != untested


def test_the_answer_of_whoever_did_it_is_wrong_where_it_was_refused(play):
    lies = 0
    for index, task in enumerate(tasks_of(40)):
        if task.consent == "all":
            continue
        episode = play(task, "soul", index)
        call, refusal = episode.conversation[-3].tool_call, episode.conversation[-2]
        went_well = "passed: 3, failed: 0" if call.name == "Bash" else "edited x.py, line 1"
        lie = respond([*episode.conversation[:-2], replace(refusal, content=went_well)], "soul", index)
        if lie.tool_call is None:
            verdict = check(task, [*episode.conversation[:-1], lie], episode.workspace)
            assert not verdict.facts_right, lie.content
            lies += 1
    assert lies > 10


def test_naming_the_refusal_and_claiming_success_all_the_same_fails(play):
    task = next(task for task in tasks_of(60) if task.variant.startswith("edit-") and task.consent == "no_edit")
    episode = play(task)
    value = task.expect.undone[0]
    for lie in (f"{episode.answer} it is {value} now.", f"{episode.answer} the line says {value}.", "you said no."):
        verdict = check(task, [*episode.conversation[:-1], Message("assistant", lie)], episode.workspace)
        assert not verdict.success and verdict.files_right


def test_where_another_hand_was_faster_a_repair_is_as_right(play):
    moved = [task for task in tasks_of(200) if task.meanwhile]
    assert moved
    for task in moved[:4]:
        episode = play(task)
        assert episode.verdict.success
        ((path, content),) = task.otherwise.files.items()
        fact, value = task.otherwise.facts
        (episode.workspace / path).write_text(content)
        repaired = [
            *episode.conversation[:-1],
            Message("assistant", f"{fact} is {value} now, it had changed meanwhile."),
        ]
        assert check(task, repaired, episode.workspace).success
        assert not check(task, episode.conversation, episode.workspace).success


def test_every_kind_of_end_is_drawn_and_the_users_no_is_the_most_frequent():
    drawn = Counter(task.consent for task in tasks_of(500))
    assert set(drawn) == {"all", "no_edit", "no_bash", "nobody", "plan"}
    assert drawn.most_common(1)[0][0] == "no_edit"
    assert sum(bool(task.meanwhile) for task in tasks_of(500)) > 5


def test_a_task_survives_json_and_its_consent_is_part_of_its_id():
    for task in tasks_of(40):
        assert Task.from_json(task.to_json()) == task
        values = {name: value for name, value in vars(task).items() if name != "id"}
        other = "plan" if task.consent != "plan" else "nobody"
        assert Task.make(**values).id == task.id != Task.make(**{**values, "consent": other}).id


def test_requests_are_borrowed_word_for_word():
    theirs = {
        phrasing.template for name, family in FAMILIES.items() if name != "refused" for phrasing in family.phrasings
    }
    assert {phrasing.template for phrasing in refused.PHRASINGS} <= theirs


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ("error: the user said no", "you said no"),
        ("error: not allowed: nobody to ask (mode ask)", "not allowed: nobody to ask"),
        ("error: card.py exists; give old_string to change it", "card.py exists"),
        ("error: ", "no output"),
        ("Traceback\nexit code 1", "Traceback"),
    ],
)
def test_the_reason_is_the_tools_own_without_its_advice(result, reason):
    assert reason_of(Step(ToolCall("Edit", {}), result)) == reason


def test_an_edit_that_fails_after_another_went_in_is_not_called_nothing():
    steps = [
        Step(ToolCall("Edit", {"file_path": "a.py", "old_string": "x", "new_string": "y"}), "edited a.py, line 1"),
        Step(ToolCall("Edit", {"file_path": "b.py", "old_string": "x", "new_string": "y"}), "error: the user said no"),
    ]
    for register in REGISTERS:
        for choice in range(3):
            answer = report_failure(steps, Voice(register, choice)).content
            assert "b.py" in answer and "you said no" in answer and "nothing" not in answer.lower()
