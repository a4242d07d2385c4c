import re

import pytest

from nanocode.conversation import Message
from nanocode.tasks.family import FIELD_PATTERNS, NotRecognised, Phrasing
from nanocode.tasks.registry import FAMILIES, family_of, respond, sample_tasks, task_at
from nanocode.tasks.task import TaskError
from nanocode.tasks.words import SPLITS

# Their requests are those of other families.
BORROWING = ("recover", "refused")
TRAINING = ("sft", "preference", "validation")


@pytest.fixture(scope="module")
def drawn():
    return {split: sample_tasks(split, 1_500, seed=11) for split in SPLITS}


def test_prompts_and_ids_are_disjoint_across_splits(drawn):
    for attribute in ("prompt", "id"):
        seen = [{getattr(task, attribute) for task in drawn[split]} for split in SPLITS]
        assert len(set().union(*seen)) == sum(map(len, seen))


def test_prompts_that_differ_only_in_case_or_variant_stay_in_one_split():
    owner = {}
    for split in SPLITS:
        for task in sample_tasks(split, 400, seed=2, families=["chat"]):
            assert owner.setdefault(task.prompt.lower(), split) == split


def test_ids_are_unique_within_a_split(drawn):
    for tasks in drawn.values():
        assert len({task.id for task in tasks}) == len(tasks)


def test_held_out_variants_appear_in_evaluation_alone_and_in_about_half_of_it(drawn):
    for split in TRAINING:
        assert not any(task.held_out_variant for task in drawn[split])
    share = sum(task.held_out_variant for task in drawn["eval"]) / len(drawn["eval"])
    assert 0.45 < share < 0.55
    trained = {(task.family, task.variant) for split in TRAINING for task in drawn[split]}
    held_out = {(task.family, task.variant) for task in drawn["eval"] if task.held_out_variant}
    assert {family for family, _ in held_out} == set(FAMILIES)
    assert not trained & held_out


def test_every_family_holds_out_one_variant_and_trains_several():
    for family in FAMILIES.values():
        held_out = [phrasing for phrasing in family.phrasings if phrasing.held_out]
        assert len(held_out) == {"recover": 4, "refused": 6}.get(family.name, 1)
        assert len(family.phrasings) - len(held_out) >= 10
        assert len({phrasing.variant for phrasing in family.phrasings}) == len(family.phrasings)


def test_held_out_phrasings_are_made_of_words_that_training_prompts_use():
    used = {True: set(), False: set()}
    for family in FAMILIES.values():
        for phrasing in family.phrasings:
            used[phrasing.held_out] |= set(re.findall(r"[a-z]+", re.sub(r"{\w+}", "", phrasing.template).lower()))
    assert used[True] <= used[False]


def test_every_family_has_its_share(drawn):
    total = sum(family.weight for family in FAMILIES.values())
    for family in FAMILIES.values():
        share = sum(task.family == family.name for task in drawn["sft"]) / len(drawn["sft"])
        assert abs(share - family.weight / total) < 0.03


def test_same_seed_same_tasks_and_a_longer_list_begins_with_the_shorter():
    assert sample_tasks("sft", 50, seed=3) == sample_tasks("sft", 50, seed=3)
    assert sample_tasks("sft", 50, seed=3)[:20] == sample_tasks("sft", 20, seed=3)
    assert sample_tasks("sft", 50, seed=3) != sample_tasks("sft", 50, seed=4)


def test_a_task_depends_on_its_place_alone():
    tasks = sample_tasks("eval", 40, seed=3)
    assert [task_at("eval", 3, index) for index in reversed(range(40))] == tasks[::-1]


def test_families_can_be_chosen_and_unknown_ones_are_refused():
    assert {task.family for task in sample_tasks("sft", 40, seed=1, families=["edit", "ask"])} == {"edit", "ask"}
    with pytest.raises(TaskError, match="unknown task family 'edits': there are read, grep"):
        sample_tasks("sft", 1, seed=1, families=["edits"])


def test_asking_for_more_than_there_is_says_so(monkeypatch):
    monkeypatch.setattr("nanocode.tasks.registry.task_at", lambda *_: task_at("sft", 1, 0))
    with pytest.raises(TaskError, match="too few different tasks for n=2"):
        sample_tasks("sft", 2, seed=1)


def test_each_prompt_is_recognised_as_what_it_is(drawn):
    for tasks in drawn.values():
        for task in tasks:
            expected = task.variant.split("-")[0] if task.family in BORROWING else task.family
            assert family_of(task.prompt) == expected


def test_no_prompt_fits_two_phrasings(drawn):
    phrasings = [
        phrasing for name, family in FAMILIES.items() if name not in BORROWING for phrasing in family.phrasings
    ]
    for task in drawn["eval"][:600]:
        assert sum(phrasing.match(task.prompt) is not None for phrasing in phrasings) == 1, task.prompt


@pytest.mark.parametrize("prompt", ["", "tell me a joke", "set MAX_SIZE to four in card.py.", "where is Main defined?"])
def test_unknown_prompts_are_not_recognised(prompt):
    with pytest.raises(NotRecognised):
        family_of(prompt)
    with pytest.raises(NotRecognised):
        respond([Message("user", prompt)], "soul")


def test_a_conversation_without_a_question_is_not_recognised():
    with pytest.raises(NotRecognised, match="no user message"):
        respond([], "soul")


def test_the_expert_answers_the_last_question_of_a_longer_conversation():
    talk = [
        Message("system", "you are a coding agent."),
        Message("user", "rename draw_card."),
        Message("assistant", "what is the new name?"),
        Message("user", "where is draw_card defined?"),
    ]
    assert respond(talk, "soul").tool_call.arguments == {"pattern": "def draw_card"}


def test_a_phrasing_reads_back_what_it_wrote():
    fields = {"path": "card.py", "constant": "MAX_SIZE", "value": "40"}
    phrasing = Phrasing("x", "set {constant} (now!) to {value} in {path}?")
    assert phrasing.match(phrasing.fill(fields)) == fields
    assert phrasing.match("set MAX_SIZE (now!) to 4000 in card.py?") is None
    assert set(fields) <= set(FIELD_PATTERNS)
