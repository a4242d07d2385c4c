import json
from dataclasses import replace

import pytest

from nanocode.conversation import Message, ToolCall
from nanocode.tasks.registry import sample_tasks
from nanocode.tasks.task import Expectation, Task, TaskError, check, mentions, prepare

BEFORE, AFTER = "MAX_SIZE = 4\n", "MAX_SIZE = 9\n"
EDIT = ToolCall("Edit", {"file_path": "card.py", "old_string": "MAX_SIZE = 4", "new_string": "MAX_SIZE = 9"})


def make(**changes):
    expect = Expectation(files={"card.py": AFTER}, facts=("MAX_SIZE", "9"), forbidden=("7",), tools=("Edit|Bash",))
    values = {
        "family": "edit",
        "variant": "set",
        "held_out_variant": False,
        "split": "sft",
        "prompt": "set MAX_SIZE to 9 in card.py.",
        "files": {"card.py": BEFORE},
        "expect": expect,
    }
    return Task.make(**{**values, **changes})


def episode(answer="MAX_SIZE is 9 now.", call=EDIT):
    messages = [Message("user", "set MAX_SIZE to 9 in card.py.")]
    if call is not None:
        messages += [Message("assistant", "editing.", call), Message("tool_result", "edited card.py, line 1")]
    return [*messages, Message("assistant", answer)]


@pytest.fixture
def solved(tmp_path):
    (tmp_path / "card.py").write_text(AFTER)
    return tmp_path


def test_a_solved_task_passes(solved):
    verdict = check(make(), episode(), solved)
    assert verdict.success and verdict.finished and verdict.called_when_needed and verdict.calls == 1
    assert verdict.reasons == ()


def test_bytecode_that_python_leaves_behind_is_no_part_of_the_end_state(solved):
    (solved / "__pycache__").mkdir()
    (solved / "__pycache__" / "card.cpython-311.pyc").write_bytes(b"\0")
    assert check(make(), episode(), solved).success


@pytest.mark.parametrize(
    ("content", "extra"),
    [(BEFORE, None), (AFTER[:-1], None), (AFTER + "\n", None), (AFTER.replace("9", "8"), None), (AFTER, "notes.txt")],
)
def test_any_difference_in_the_workspace_fails(tmp_path, content, extra):
    (tmp_path / "card.py").write_text(content)
    if extra:
        (tmp_path / extra).write_text("")
    verdict = check(make(), episode(), tmp_path)
    assert not verdict.success and not verdict.files_right
    assert (extra or "card.py") in verdict.reasons[0]


def test_a_deleted_file_and_one_replaced_by_a_link_fail(tmp_path, solved):
    (solved / "card.py").rename(tmp_path / "other.py")
    assert "card.py is missing" in check(make(), episode(), solved).reasons
    (solved / "card.py").symlink_to(tmp_path / "other.py")
    assert not check(make(), episode(), solved).files_right


def test_a_file_that_must_not_exist_fails_the_task(solved):
    task = make(expect=replace(make().expect, files={"card.py": None}))
    assert "card.py should not exist" in check(task, episode(), solved).reasons
    (solved / "card.py").unlink()
    assert check(task, episode(), solved).success


def test_the_right_files_without_a_call_fail(solved):
    verdict = check(make(), episode(call=None), solved)
    assert not verdict.success and not verdict.called_when_needed


def test_a_call_that_no_tool_answered_does_not_count(solved):
    messages = [episode()[0], Message("assistant", "editing.", EDIT)]
    verdict = check(make(), messages, solved)
    assert not verdict.finished and not verdict.called_when_needed and verdict.calls == 0


def test_a_call_where_none_is_needed_fails(solved):
    task = make(expect=replace(make().expect, tools=()))
    assert not check(task, episode(), solved).called_when_needed
    assert check(task, episode(call=None), solved).success


@pytest.mark.parametrize(
    "answer", ["", "  ", "MAX_SIZE is 19 now.", "it is 9.", "MAX_SIZE is 9, not 7.", "MAX_SIZES: 9"]
)
def test_answers_without_the_facts_or_with_a_wrong_one_fail(solved, answer):
    assert not check(make(), episode(answer), solved).success


def test_the_last_bash_result_must_be_the_expected_one(solved):
    expect = replace(make().expect, tools=("Bash",), last_bash="ok")
    task = make(expect=expect)

    def runs(*results):
        messages = [episode()[0]]
        for result in results:
            call = ToolCall("Bash", {"command": "python test_card.py"})
            messages += [Message("assistant", "running.", call), Message("tool_result", result)]
        return check(task, [*messages, Message("assistant", "MAX_SIZE is 9.")], solved).success

    assert runs("fail: got 4, want 9\nexit code 1", "ok\n")
    assert not runs("ok", "fail: got 4, want 9\nexit code 1")
    assert not runs("error: not allowed")


@pytest.mark.parametrize(
    ("text", "fact", "expected"),
    [
        ("it is 5.", "5", True),
        ("it is 15.", "5", False),
        ("it is 50.", "5", False),
        ("see price.py.", "price.py", True),
        ("see test_price.py", "price.py", False),
        ("see lib/price.py", "price.py", False),
        ("on line 3 of it", "line 3", True),
        ("on line 31 of it", "line 3", False),
        ("which value?", "?", True),
        ("returns n * 3.", "n * 3", True),
        ("returns n * 30.", "n * 3", False),
    ],
)
def test_facts_count_as_whole_words_only(text, fact, expected):
    assert mentions(text, fact) is expected


def test_json_keeps_every_task():
    for split in ("sft", "eval"):
        for task in sample_tasks(split, 60, seed=5):
            assert Task.from_json(json.loads(json.dumps(task.to_json()))) == task


@pytest.mark.parametrize("damage", [{"expect": None}, {"colour": "red"}, {"files": {"../x.py": ""}}])
def test_json_that_is_no_task_is_refused(damage):
    with pytest.raises(TaskError):
        Task.from_json({**make().to_json(), **damage})


def test_the_id_follows_the_content():
    assert make().id == make().id
    assert make().id.startswith("edit-")
    others = [
        make(prompt="set MAX_SIZE to 9 in card.py"),
        make(files={"card.py": "MAX_SIZE = 5\n"}),
        make(expect=replace(make().expect, facts=("9",))),
    ]
    assert len({make().id, *(task.id for task in others)}) == 4


@pytest.mark.parametrize("path", ["../card.py", "/etc/card.py", "lib/../../card.py", ""])
def test_paths_outside_the_workspace_are_refused(path):
    with pytest.raises(TaskError, match="not a path inside the workspace"):
        make(files={path: ""})


def test_prepare_writes_the_files_and_refuses_a_used_folder(tmp_path):
    task = make(files={"card.py": BEFORE, "lib/page.py": "x = 1\r\n"})
    prepare(task, tmp_path / "new")
    assert (tmp_path / "new" / "lib" / "page.py").read_bytes() == b"x = 1\r\n"
    with pytest.raises(TaskError, match="not empty"):
        prepare(task, tmp_path / "new")
