"""Judges one program by the tests of one problem: two processes, of which only one runs the program.

The judge holds the tests and a secret, the other process the program under test; all that passes between them are the
arguments of calls and plain results. The program cannot print the verdict (it does not know the secret, and has no way
to the judge's output), leave early (the judge waits for answers), catch, redefine or replace what judges it (that is in
another process), or return an object that equals everything (only plain values pass). Before the program arrives, the
judge has read the tests and the secret, their file is gone, its memory and descriptors are closed to every other
process of its user, and it imports from nowhere that can be written.

Runs inside the sandbox on the standard library alone.
"""

from __future__ import annotations

import builtins
import ctypes
import fcntl
import json
import os
import random
import resource
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from nanocode.evaluation.human_eval.values import ValuesError, decode, encode

PR_SET_DUMPABLE = 4
READ_BYTES = 1 << 16
MAX_LINE_BYTES = 32 << 20
SHOWN_CHARACTERS = 200
PAUSE_SECONDS = 0.001
SCRATCH = "/tmp"
_INTERFERED = "it wrote between its results"


class _Ended(BaseException):
    """No further answer comes; not an Exception, so that no test can catch it."""

    def __init__(self, outcome: str, detail: str) -> None:
        super().__init__(outcome, detail)
        self.outcome, self.detail = outcome, detail


class ForeignError(Exception):
    """An exception of the program under test whose type the tests do not know."""


def main() -> None:
    """Judge the case in the file that the last argument names; print the secret and the verdict."""
    library, path = sys.argv[-2:]
    sys.path.remove(library)
    requests, answers = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(requests[1])
        os.close(answers[0])
        serve(requests[0], answers[1])
    os.close(requests[0])
    os.close(answers[1])
    hide()
    case = take(Path(path))
    outcome, detail = judge(case, Program(child, answers[0], requests[1], case["seconds"]))
    verdict = json.dumps({"outcome": outcome, "detail": detail[:SHOWN_CHARACTERS]})
    os.write(1, f"\n{case['secret']} {verdict}\n".encode())
    # Nothing that tests have registered or begun to print may follow.
    os._exit(0)


def take(path: Path) -> dict[str, Any]:
    """The case, once its file is gone: a lock on it tells whoever wrote it to take it away."""
    with path.open(encoding="utf-8") as file:
        case: dict[str, Any] = json.load(file)
        fcntl.flock(file, fcntl.LOCK_EX)
        while path.exists():
            time.sleep(PAUSE_SECONDS)
    return case


def hide() -> None:
    """Close this process's memory and descriptors to every other of the same user. Raises OSError."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the kernel does not close this process to others")


def judge(case: dict[str, Any], program: Program) -> tuple[str, str]:
    """``passed``, ``assertion``, ``error``, ``timeout``, ``limits`` or ``ended``, and what there is to say about it."""
    try:
        program.send({name: case[name] for name in ("source", "entry_point", "seed", "processor_seconds")})
        program.answer()
        namespace: dict[str, Any] = {"__name__": "tests"}
        exec(compile(case["preamble"], "prompt.py", "exec"), namespace)
        namespace[case["entry_point"]] = program.call
        exec(compile(case["test"], "test.py", "exec"), namespace)
        random.seed(case["seed"])
        namespace["check"](program.call)
    except _Ended as end:
        return end.outcome, end.detail
    except BaseException as error:  # noqa: BLE001 - whatever it is, the tests have not passed
        if isinstance(error, AssertionError) and error is not program.raised:
            return "assertion", str(error)
        name = program.raised_name if error is program.raised else type(error).__name__
        return "error", f"{name}: {error}"
    return "passed", ""


class Program:
    """The process with the program under test, as the tests see it: a function to call."""

    def __init__(self, pid: int, answers: int, requests: int, seconds: float) -> None:
        self._pid, self._answers, self._requests = pid, answers, requests
        self._deadline = time.monotonic() + seconds
        self.raised: BaseException | None = None
        self.raised_name = ""

    def call(self, *arguments: Any, **named: Any) -> Any:
        """Its result, or its exception. Changes that it makes to its arguments are not seen."""
        self.send([list(arguments), named])
        return self.answer()

    def send(self, value: object) -> None:
        """Raises _Ended when the process has ended or takes nothing."""
        rest = memoryview(encode(value).encode() + b"\n")
        os.set_blocking(self._requests, False)
        while rest:
            _, ready, _ = select.select([], [self._requests], [], self._left())
            if not ready:
                raise _Ended("timeout", "it did not read its arguments")
            try:
                rest = rest[os.write(self._requests, rest) :]
            except BrokenPipeError:
                raise self._end() from None

    def answer(self) -> Any:
        """The result of the last call, or its exception raised here."""
        try:
            kind, *content = decode(self._line())
            if kind == "result":
                return content[0]
            name, message = str(content[0]), str(content[1])
        except (ValuesError, ValueError, TypeError, IndexError):
            raise _Ended("ended", _INTERFERED) from None
        self.raised, self.raised_name = _exception(name, message), name
        raise self.raised

    def _line(self) -> bytes:
        line = bytearray()
        while not line.endswith(b"\n"):
            if len(line) > MAX_LINE_BYTES:
                raise _Ended("limits", "its result is too large")
            ready, _, _ = select.select([self._answers], [], [], self._left())
            data = os.read(self._answers, READ_BYTES) if ready else None
            if data is None:
                raise _Ended("timeout", "it did not answer in time")
            if not data:
                raise self._end()
            line += data
        return bytes(line)

    def _left(self) -> float:
        return max(0.0, self._deadline - time.monotonic())

    def _end(self) -> _Ended:
        """Why the process answers no more."""
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        while not pid:
            if not self._left():
                return _Ended("timeout", "it closed its output and went on")
            time.sleep(PAUSE_SECONDS)
            pid, status = os.waitpid(self._pid, os.WNOHANG)
        if not os.WIFSIGNALED(status):
            return _Ended("ended", f"with exit code {os.WEXITSTATUS(status)}")
        if os.WTERMSIG(status) == signal.SIGXCPU:
            return _Ended("timeout", "its processor time is over")
        return _Ended("ended", f"by signal {signal.Signals(os.WTERMSIG(status)).name}")


def serve(requests: int, answers: int) -> None:
    """The other process: run the program, then answer one call after the other. Never returns."""
    null = os.open("/dev/null", os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    os.chdir(SCRATCH)
    with os.fdopen(requests, encoding="utf-8") as lines, os.fdopen(answers, "w", encoding="utf-8") as out:

        def say(line: str) -> None:
            out.write(line + "\n")
            out.flush()

        functions: list[Callable[..., Any]] = []
        case = decode(lines.readline())
        # The sandbox's own limit is higher: at this one the signal says what it was.
        resource.setrlimit(resource.RLIMIT_CPU, (case["processor_seconds"], resource.getrlimit(resource.RLIMIT_CPU)[1]))
        say(_told(lambda: functions.append(load(case)), [], {}))
        for line in lines:
            arguments, named = decode(line)
            say(_told(functions[0], arguments, named))
    os._exit(0)


def _told(function: Callable[..., Any], arguments: list[Any], named: dict[str, Any]) -> str:
    """A call's result or exception as a line."""
    try:
        return encode(["result", function(*arguments, **named)])
    except BaseException as error:  # noqa: BLE001 - SystemExit too is an answer
        return encode(["raised", type(error).__name__, _message(error)])


def load(case: dict[str, Any]) -> Callable[..., Any]:
    """Run the program as a module of its own; its function of the wanted name. Raises what the program raises."""
    random.seed(case["seed"])
    module = sys.modules["solution"] = ModuleType("solution")
    exec(compile(case["source"], "solution.py", "exec"), module.__dict__)
    if case["entry_point"] not in module.__dict__:
        raise NameError(f"name '{case['entry_point']}' is not defined")
    function: Callable[..., Any] = module.__dict__[case["entry_point"]]
    return function


def _exception(name: str, message: str) -> Exception:
    """One of Python's own by its name, so that tests can expect it; otherwise a `ForeignError`."""
    known = getattr(builtins, name, None)
    if isinstance(known, type) and issubclass(known, Exception):
        try:
            return known(message)
        except TypeError:  # those of Unicode take more
            return ForeignError(message)
    return ForeignError(message)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - it is the program's own method
        return ""
