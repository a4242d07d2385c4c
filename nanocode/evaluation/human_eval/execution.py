"""Runs a program against the tests of a problem in the sandbox and says what came of it.

How the verdict is kept out of the program's reach: `nanocode.evaluation.human_eval.judge`, which is what runs inside.
"""

from __future__ import annotations

import fcntl
import json
import secrets
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from nanocode.agent.processes import Completed
from nanocode.agent.profile import PROJECT
from nanocode.agent.results import valid_text
from nanocode.agent.sandbox import Limits, Sandbox
from nanocode.evaluation.human_eval import judge, values

Outcome = Literal["passed", "assertion", "error", "timeout", "limits", "ended"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

# The reference gives 3 seconds of a machine that does nothing else. Processor time does not depend on who else works;
# the clock is for programs that wait.
PROCESSOR_SECONDS = 5
WALL_SECONDS = 15.0
MARGIN_SECONDS = 10.0
MEMORY_BYTES = 1 << 30
WATCH_SECONDS = 0.002
SECRET_BYTES = 32
_CASE, _LIBRARY = "case.json", "judge"


class JudgeError(RuntimeError):
    """Nothing can be judged here. The message is one line."""


@dataclass(frozen=True)
class Case:
    """A program and what it must do: ``test`` defines ``check(candidate)``, ``preamble`` what the tests may use
    besides, and ``entry_point`` is the name of the function that is called.
    """

    source: str
    entry_point: str
    preamble: str
    test: str


@dataclass(frozen=True)
class Judgement:
    """``passed``: every test. ``assertion``: a test said no. ``error``: an exception, ``detail`` starts with its type.
    ``timeout``, ``limits`` (memory, processes, size of a result), ``ended``: the program, or what judges it, was gone
    before the end, or it wrote where only results are written.
    """

    outcome: Outcome
    detail: str = ""


@dataclass(frozen=True)
class Judge:
    """Judges cases, several at once from several threads. ``secret`` gives each its own, unguessable word.

    ``margin_seconds`` is by how much the sandbox waits longer than the judge in it: for its start and for the verdict.
    """

    sandbox: Sandbox
    processor_seconds: int = PROCESSOR_SECONDS
    wall_seconds: float = WALL_SECONDS
    margin_seconds: float = MARGIN_SECONDS
    secret: Callable[[], str] = lambda: secrets.token_hex(SECRET_BYTES)

    def judge(self, case: Case, seed: int = 0) -> Judgement:
        """Raises SandboxUnavailable. ``seed`` is that of the module ``random``, for the program and for the tests."""
        secret = self.secret()
        bounds = {"seconds": self.wall_seconds, "processor_seconds": self.processor_seconds}
        content = {**vars(case), **bounds, "seed": seed, "secret": secret}
        with tempfile.TemporaryDirectory(prefix="nanocode-judge-") as scratch:
            workspace = Path(scratch)
            _write_library(workspace / _LIBRARY)
            (workspace / _CASE).write_text(json.dumps(content), encoding="utf-8")
            with _taken_away(workspace / _CASE):
                # Nothing that a program writes outlives it, and nothing that runs later can have been written by it.
                completed = self.sandbox.run(_COMMAND, workspace, self._limits(), writable=False)
        return _judgement(completed, secret)

    def check(self) -> None:
        """Judge a right and a wrong program. Raises JudgeError when it does not tell them apart, SandboxUnavailable."""
        for source, outcome in (("def one():\n    return 1\n", "passed"), ("def one():\n    return 2\n", "assertion")):
            found = self.judge(Case(source, "one", "", "def check(candidate):\n    assert candidate() == 1\n"))
            if found.outcome != outcome:
                raise JudgeError(f"programs cannot be judged here: {found.outcome} ({found.detail}), not {outcome}")

    def _limits(self) -> Limits:
        return Limits(
            wall_seconds=self.wall_seconds + self.margin_seconds,
            cpu_seconds=self.processor_seconds + 1,
            memory_bytes=MEMORY_BYTES,
        )


# Not isolated (-I): the environment is the sandbox's own, and fixes the order of sets.
_COMMAND = (
    "exec python3 -P -s -S -c 'import sys; sys.path.insert(0, sys.argv[1]); "
    f"from nanocode.evaluation.human_eval.judge import main; main()' {PROJECT}/{_LIBRARY} {PROJECT}/{_CASE}"
)


def _write_library(folder: Path) -> None:
    """The modules that run inside, under the names by which they import each other."""
    package = folder.joinpath(*judge.__name__.split(".")[:-1])
    package.mkdir(parents=True)
    for module in (judge, values):
        source = Path(str(module.__file__))
        (package / source.name).write_bytes(source.read_bytes())


@contextmanager
def _taken_away(path: Path) -> Iterator[None]:
    """While this runs, the file is removed as soon as somebody has locked it."""
    over = threading.Event()

    def watch() -> None:
        with path.open("rb") as file:
            while not over.wait(WATCH_SECONDS):
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    path.unlink()
                    return
                fcntl.flock(file, fcntl.LOCK_UN)

    watcher = threading.Thread(target=watch, name="judge-case")
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _judgement(completed: Completed, secret: str) -> Judgement:
    for line in completed.output.splitlines():
        word, _, verdict = line.partition(" ")
        if secrets.compare_digest(word.encode(), secret.encode()):
            found = json.loads(verdict)
            return Judgement(found["outcome"], valid_text(found["detail"]))
    if completed.timed_out:
        return Judgement("timeout", "the sandbox's time is over")
    if completed.stopped:
        return Judgement("limits", completed.exceeded or "too much output")
    last = completed.output.strip().splitlines()[-1:] or [f"exit code {completed.exit_code}"]
    return Judgement("ended", f"without a verdict: {last[0][: judge.SHOWN_CHARACTERS]}")
