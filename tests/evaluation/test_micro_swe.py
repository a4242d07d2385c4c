"""micro-SWE: every bug shows, the fix is right, and only code that passes the original tests wins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanocode.agent.processes import Completed, run_bounded
from nanocode.agent.sandbox import Limits, Sandbox
from nanocode.conversation import Message, ToolCall
from nanocode.evaluation.agent_tasks import work_on
from nanocode.evaluation.micro_swe.functions import FUNCTIONS
from nanocode.evaluation.micro_swe.generation import MODULES, micro_swe_tasks
from nanocode.evaluation.micro_swe.grading import TestsPass, failing_tests, is_test
from nanocode.evaluation.micro_swe.mutations import KINDS
from nanocode.tasks.family import NotRecognised
from nanocode.tasks.registry import family_of
from nanocode.tasks.task import Task, TaskError, prepare
from nanocode.tasks.words import NOUNS, SPLITS, function_names

TASKS = micro_swe_tasks(21, 0)


class Direct:
    """Runs the command without a sandbox: here only this project's own sources run."""

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        environment = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
        return run_bounded(["/bin/sh", "-c", f"cd {workspace} && {command}"], limits.bounds(), environment=environment)


def faults(task: Task, workspace: Path, files: dict[str, str | None]) -> list[str]:
    """Of a workspace with these files in place of the task's (None: removed)."""
    prepare(task, workspace)
    for path, content in files.items():
        if content is None:
            (workspace / path).unlink()
        else:
            (workspace / path).parent.mkdir(parents=True, exist_ok=True)
            (workspace / path).write_text(content)
    return failing_tests(task, workspace, Direct(), Limits())


def changed(task: Task) -> str:
    """The one file with the bug."""
    (path,) = [path for path in task.files if task.files[path] != task.expect.files[path]]
    return path


def fix(task: Task) -> dict[str, str | None]:
    return {changed(task): task.expect.files[changed(task)]}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: f"{task.variant}-{task.id[-6:]}")
def test_the_fix_solves_the_task_and_the_untouched_workspace_does_not(task: Task, tmp_path: Path) -> None:
    assert faults(task, tmp_path / "fixed", fix(task)) == []
    found = faults(task, tmp_path / "untouched", {})
    assert found and all(fault.endswith(" fails") for fault in found)
    function = next(name for name in FUNCTIONS if f".test_{name} fails" in " ".join(found))
    assert function in task.files[changed(task)]


@pytest.mark.slow
def test_of_many_tasks_each_fix_solves_and_no_untouched_workspace_does(tmp_path: Path) -> None:
    for place, task in enumerate(micro_swe_tasks(150, 7)):
        assert faults(task, tmp_path / f"{place}-fixed", fix(task)) == [], task.id
        assert faults(task, tmp_path / f"{place}-untouched", {}), task.id


def test_tasks_are_different_and_follow_from_the_seed() -> None:
    assert micro_swe_tasks(8, 0) == TASKS[:8]
    assert not {task.id for task in micro_swe_tasks(8, 1)} & {task.id for task in TASKS}
    assert len({task.id for task in TASKS}) == len(TASKS)
    assert {task.variant for task in TASKS} == set(KINDS)


def test_a_repository_has_several_modules_with_their_tests() -> None:
    for task in TASKS:
        code = {path for path in task.files if not is_test(path)}
        assert len(code) >= MODULES
        assert {path for path in task.files if is_test(path)} == {f"test_{path}" for path in code}
        assert changed(task) in code


def test_nothing_of_it_occurs_in_the_families_that_models_are_trained_on() -> None:
    trained = {name for split in SPLITS for name in function_names(split)}
    assert not trained & set(FUNCTIONS)
    modules = {function.module for function in FUNCTIONS.values()}
    assert not modules & set(NOUNS) and not modules & set(sys.stdlib_module_names)
    for task in TASKS:
        with pytest.raises(NotRecognised):
            family_of(task.prompt)


def test_more_tasks_than_there_are_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocode.evaluation.micro_swe.generation._ATTEMPTS", 1)
    with pytest.raises(TaskError, match="too few different micro-SWE tasks"):
        micro_swe_tasks(50, 0)


PASSING = "import unittest\n\n\nclass T(unittest.TestCase):\n    def test_nothing(self):\n        pass\n"


def test_a_test_that_was_edited_deleted_or_shadowed_counts_as_it_was(tmp_path: Path) -> None:
    task = TASKS[0]
    test = f"test_{changed(task)}"
    for place, files in enumerate(
        (
            {test: PASSING},
            {test: None},
            {f"{test.removesuffix('.py')}/__init__.py": PASSING},
            {"unittest.py": "raise SystemExit(0)\n"},
            {"sitecustomize.py": "import os\nos._exit(0)\n"},
        )
    ):
        assert faults(task, tmp_path / str(place), files), files
        assert faults(task, tmp_path / f"{place}-fixed", {**files, **fix(task)}) == [], files


def test_code_that_never_ends_has_not_passed(tmp_path: Path) -> None:
    task = TASKS[0]
    prepare(task, tmp_path)
    (tmp_path / changed(task)).write_text("while True:\n    pass\n")
    assert failing_tests(task, tmp_path, Direct(), Limits(wall_seconds=1.0)) == ["the tests did not run to their end"]


@pytest.mark.parametrize("ending", ["import os\nos._exit(0)\n", "raise SystemExit(0)\n", 'print("0 passed")\nquit()\n'])
def test_code_that_ends_the_run_has_not_passed(tmp_path: Path, ending: str) -> None:
    task = TASKS[0]
    files = {changed(task): f"{ending}{task.expect.files[changed(task)]}"}
    assert faults(task, tmp_path / "w", files) == ["the tests did not run to their end"]


def test_code_that_cannot_be_imported_is_named(tmp_path: Path) -> None:
    task = TASKS[0]
    found = faults(task, tmp_path / "w", {changed(task): "def broken(:\n"})
    assert found == [f"test_{changed(task)}: SyntaxError: {found[0].partition('SyntaxError: ')[2]}"]


def test_links_and_compiled_leftovers_are_not_code(tmp_path: Path) -> None:
    task = TASKS[0]
    (tmp_path / "fixed.py").write_text(task.expect.files[changed(task)] or "")
    prepare(task, tmp_path / "w")
    (tmp_path / "w" / changed(task)).unlink()
    (tmp_path / "w" / changed(task)).symlink_to(tmp_path / "fixed.py")
    found = failing_tests(task, tmp_path / "w", Direct(), Limits())
    assert any("ModuleNotFoundError" in fault for fault in found)


class Fixer:
    """Makes the right edit and says nothing."""

    def __init__(self, task: Task) -> None:
        path = changed(task)
        self._replies: Iterator[Message] = iter(
            [
                Message("assistant", "", ToolCall("Read", {"file_path": path})),
                Message(
                    "assistant",
                    "",
                    ToolCall(
                        "Edit",
                        {"file_path": path, "old_string": task.files[path], "new_string": str(task.expect.files[path])},
                    ),
                ),
                Message("assistant", "done"),
            ]
        )

    def respond(self, conversation: object) -> Message:
        return next(self._replies)


class Silent:
    def respond(self, conversation: object) -> Message:
        return Message("assistant", "all is well")


def test_whoever_fixes_it_in_a_session_with_the_real_tools_has_solved_it() -> None:
    sandbox = Sandbox()
    judge = TestsPass(sandbox)
    fixed = work_on(TASKS[0], Fixer(TASKS[0]), sandbox, 8, judge=judge)
    assert fixed.verdict.success and fixed.verdict.reasons == () and fixed.verdict.called_when_needed
    left = work_on(TASKS[0], Silent(), sandbox, 8, judge=judge)
    assert not left.verdict.success and left.verdict.finished and not left.verdict.called_when_needed
