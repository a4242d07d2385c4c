"""Grading of micro-SWE: the original tests against what the agent left of the code, in the sandbox.

The agent's files are copied into a fresh folder, the original tests are put over them, and all of them run there: an
agent that edits, deletes or shadows a test gains nothing by it. A verdict needs a line that only the end of a whole run
prints, so a module that exits early has not passed. The code under test shares its process with the tests; a patch of
unittest itself from inside a module would not be seen.
"""

from __future__ import annotations

import secrets
import shlex
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nanocode.agent.sandbox import Limits, Shell
from nanocode.conversation import Message
from nanocode.tasks.task import Task, Verdict, check

# Isolated mode keeps the folder off the module path until what the tests need is imported, so that a module of the
# agent's named like one of those does not take its place.
_RUNNER = """\
import importlib.util, os, sys, unittest
nonce, *paths = sys.argv[1:]
del sys.argv[1:]
sys.path.insert(0, os.getcwd())
suite = unittest.TestSuite()
for path in paths:
    spec = importlib.util.spec_from_file_location(path.removesuffix(".py").replace("/", "."), path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        print(f"{path}: {type(error).__name__}: {error}"[:200])
        continue
    suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
with open(os.devnull, "w") as nowhere:
    result = unittest.TextTestRunner(stream=nowhere).run(suite)
for test, _ in result.failures + result.errors:
    print(f"{test.id()} fails")
print(f"{nonce} {result.testsRun - len(result.failures) - len(result.errors)} passed")
"""
_SHOWN_FAULTS = 5
# Processor time decides (10 seconds); the clock is wide, so that a busy machine does not.
_LIMITS = Limits(wall_seconds=60.0)


@dataclass(frozen=True)
class TestsPass:
    """A judge of micro-SWE tasks. One test run at a time: many at once would meet the sandbox's time limit."""

    sandbox: Shell
    limits: Limits = _LIMITS
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)
    __test__ = False  # not a test, although it is named like one

    def __call__(self, task: Task, conversation: Sequence[Message], workspace: Path) -> Verdict:
        """Solved when every test passes; whether the agent said something at the end is not asked."""
        with self._one_at_a_time:
            faults = failing_tests(task, workspace, self.sandbox, self.limits)
        said = check(task, conversation, workspace)
        return Verdict(
            success=not faults,
            reasons=tuple(faults),
            finished=said.finished,
            called_when_needed=said.called_when_needed,
            facts_right=True,
            files_right=not faults,
            calls=said.calls,
        )


def failing_tests(task: Task, workspace: Path, sandbox: Shell, limits: Limits) -> list[str]:
    """What is wrong with the workspace's code by the task's original tests; nothing when all of them pass.

    Raises SandboxUnavailable.
    """
    tests = sorted(path for path in task.files if is_test(path))
    total = sum(task.files[path].count("    def test_") for path in tests)
    nonce = secrets.token_hex(8)
    with tempfile.TemporaryDirectory(prefix="nanocode-grade-") as scratch:
        folder = Path(scratch) / "project"
        _copy_code(workspace, folder, set(tests))
        for path in tests:
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(task.files[path].encode())
        command = shlex.join(["python", "-I", "-c", _RUNNER, nonce, *tests])
        completed = sandbox.run(command, folder, limits, writable=False)
    *rows, last = completed.output.rstrip("\n").split("\n")
    if completed.exit_code == 0 and last == f"{nonce} {total} passed":
        return []
    if not last.startswith(nonce):
        return ["the tests did not run to their end"]
    return rows[-_SHOWN_FAULTS:] or ["not every test was run"]


def is_test(path: str) -> bool:
    """Whether the file of a repository holds tests."""
    return PurePosixPath(path).name.startswith("test_")


def _copy_code(workspace: Path, folder: Path, tests: set[str]) -> None:
    """Every regular file that can be source; none in the place of a test, nothing compiled, no links."""
    taken = {PurePosixPath(path).with_suffix("").as_posix() for path in tests}
    folder.mkdir()
    for path in sorted(workspace.rglob("*.py")):
        relative = path.relative_to(workspace)
        beyond = any((workspace / parent).is_symlink() for parent in [relative, *relative.parents[:-1]])
        shadowing = relative.as_posix() in tests or relative.parts[0] in taken
        if path.is_file() and not beyond and not shadowing:
            (folder / relative).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, folder / relative)
