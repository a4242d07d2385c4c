import re
from dataclasses import replace

import pytest

from nanocode.agent.policy import Policy
from nanocode.conversation import Message, ToolCall
from nanocode.tasks.registry import FAMILIES, respond, sample_tasks
from nanocode.tasks.task import REGISTERS, check, prepare
from nanocode.tasks.words import SPLITS

# A command takes a tenth of a second in the sandbox, everything else a millisecond.
SAMPLES = {"fix": 2, "run": 2}
NEED_TOOLS = [family for family in FAMILIES if family not in ("ask", "chat")]
WITHOUT_BASH = [family for family in FAMILIES if family not in SAMPLES]


def tasks_of(family, split, n=None):
    return sample_tasks(split, n or SAMPLES.get(family, 12), seed=21, families=[family])


@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_expert_solves_every_task_with_the_same_calls_in_both_registers(play, family, split):
    for index, task in enumerate(tasks_of(family, split)):
        stock, soul = (play(task, register, index) for register in REGISTERS)
        for episode in (stock, soul):
            assert episode.verdict.success, (episode.verdict.reasons, episode.conversation)
        calls = [[message.tool_call for message in episode.conversation] for episode in (stock, soul)]
        assert calls[0] == calls[1]
        assert any(calls[0]) == bool(task.expect.tools)


@pytest.mark.parametrize("family", WITHOUT_BASH)
def test_every_variant_is_solved_held_out_ones_included(play, family):
    seen = set()
    for task in tasks_of(family, "eval", {"recover": 800, "refused": 1_000}.get(family, 300)):
        if task.variant not in seen:
            seen.add(task.variant)
            assert play(task).verdict.success
    assert seen == {phrasing.variant for phrasing in FAMILIES[family].phrasings}


@pytest.mark.parametrize("family", NEED_TOOLS)
def test_the_right_words_without_the_work_fail(play, tmp_path, family):
    task = tasks_of(family, "sft", 1)[0]
    episode = play(task)
    fresh = tmp_path / "fresh"
    prepare(task, fresh)
    only_words = [episode.conversation[0], episode.conversation[-1]]
    assert not check(task, only_words, episode.workspace).success
    assert not check(task, only_words, fresh).success
    assert check(task, episode.conversation, fresh).success == task.read_only


@pytest.mark.parametrize("family", ["edit", "rename", "insert", "fix", "create"])
def test_an_edit_with_one_wrong_character_fails(play, family):
    episode = play(tasks_of(family, "sft", 1)[0])
    path = next(p for p, content in episode.task.expect.files.items() if episode.task.files.get(p) != content)
    target = episode.workspace / path
    right = target.read_text()
    for index in range(len(right)):
        target.write_text(right[:index] + "~" + right[index + 1 :])
        assert not episode.verdict.success
    target.write_text(right)
    assert episode.verdict.success


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_that_lacks_or_changes_a_fact_fails(play, family):
    episode = play(tasks_of(family, "sft", 1)[0])
    for fact in episode.task.expect.facts:
        pattern = "|".join(
            rf"\b{re.escape(word)}" if word[0].isalnum() else re.escape(word) for word in fact.split("|")
        )
        for instead in ("", "~"):
            wrong = replace(episode.conversation[-1], content=re.sub(pattern, instead, episode.answer))
            assert not check(episode.task, [*episode.conversation[:-1], wrong], episode.workspace).success
    assert not check(episode.task, episode.conversation[:-1], episode.workspace).success


@pytest.mark.parametrize("family", ["ask", "chat"])
def test_a_needless_call_fails(play, family):
    episode = play(tasks_of(family, "sft", 1)[0])
    first, *rest = episode.conversation
    look = [Message("assistant", "looking.", ToolCall("Grep", {"pattern": "x"})), Message("tool_result", "no matches")]
    verdict = check(episode.task, [first, *look, *rest], episode.workspace)
    assert not verdict.success and not verdict.called_when_needed


def test_a_fix_that_was_never_tested_fails(play):
    episode = play(tasks_of("fix", "sft", 1)[0])
    untested = [*episode.conversation[:5], episode.conversation[-1]]
    assert episode.conversation[5].tool_call.name == "Bash"
    assert "never called Bash" in check(episode.task, untested, episode.workspace).reasons


def test_fix_tasks_start_with_a_test_that_really_fails(play, shell, tmp_path):
    task = tasks_of("fix", "sft", 1)[0]
    broken = replace(task, prompt=f"run test_{next(iter(task.files))} and report how draw_card does.")
    result = play(broken).conversation[2].content
    assert re.fullmatch(r"fail: got -?\d+, want -?\d+\nexit code 1", result)


def test_recover_invents_no_place_and_no_value(play):
    for index, task in enumerate(tasks_of("recover", "sft", 40)):
        for register in REGISTERS:
            episode = play(task, register, index)
            numbers = re.findall(r"\d+", episode.answer)
            assert not numbers, episode.answer
            invented = replace(episode.conversation[-1], content=episode.answer + " " + task.expect.forbidden[0])
            assert not check(task, [*episode.conversation[:-1], invented], episode.workspace).success


@pytest.mark.parametrize("family", ["edit", "rename", "insert", "fix", "create", "run"])
def test_a_refused_call_is_reported_in_the_tools_own_words(play, family):
    task = tasks_of(family, "sft", 1)[0]
    for register in REGISTERS:
        for choice in range(3):
            episode = play(task, register, choice, Policy("ask"))
            assert "not allowed" in episode.answer
            assert not episode.verdict.success


def test_a_test_that_still_fails_after_the_fix_is_not_called_passed():
    talk = [
        Message("user", "test_card.py fails. fix draw_card in card.py."),
        Message("assistant", "reading.", ToolCall("Read", {"file_path": "card.py"})),
        Message("tool_result", "    1→def draw_card(n):\n    2→    # n plus 3\n    3→    return n - 3"),
        Message("assistant", "editing.", ToolCall("Edit", {})),
        Message("tool_result", "edited card.py, line 3"),
        Message("assistant", "running.", ToolCall("Bash", {"command": "python test_card.py"})),
        Message("tool_result", "fail: got 5, want 9\nexit code 1"),
    ]
    for register in REGISTERS:
        for choice in range(3):
            answer = respond(talk, register, choice)
            assert answer.tool_call is None and "got 5, want 9" in answer.content
            assert re.search(r"still fails|does not pass", answer.content)


def test_count_says_zero_when_nothing_matches():
    talk = [
        Message("user", "count the lines with draw_card."),
        Message("assistant", "searching.", ToolCall("Grep", {"pattern": "draw_card"})),
        Message("tool_result", "no matches"),
    ]
    for register in REGISTERS:
        assert "0 lines" in respond(talk, register).content
