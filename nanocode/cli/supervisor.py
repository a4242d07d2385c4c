"""Running a flow as a child: what Metaflow leaves undone about signals, exit codes and restarts.

Metaflow passes no signal on and ends with status 1 whatever happened to a step. Here the orchestrator is a child in a
process group of its own, and its steps report how they end (`steps.attempts`). To stop, the orchestrator is killed:
that keeps it from retrying what is being stopped, and its steps take the end of their orchestrator for the request to
save and leave (`steps.signals`), however it ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from steps.attempts import FOLDER, any_running, read_attempts
from steps.signals import INTERRUPTED, WATCHED_PIDS

OK, FAILED = 0, 1
MAX_RESTARTS = 10
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 60.0

_POLL_SECONDS = 0.1
# Steps that had their grace end themselves; this is for one that cannot, stopped in the kernel or by a debugger.
_EXTRA_SECONDS = 3.0


@dataclass(frozen=True)
class Ending:
    """How the run ended: the exit status, and one line when it did not end well."""

    status: int
    message: str = ""


class Supervisor:
    """Runs one command, restarts it if asked to, stops it on a signal. Made for the main thread of the process."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        grace_seconds: float,
        say: Callable[[str], None],
        first_pause_seconds: float = FIRST_PAUSE_SECONDS,
    ) -> None:
        self._command, self._environment = command, environment
        self._grace_seconds, self._say, self._first_pause_seconds = grace_seconds, say, first_pause_seconds
        self._signals = 0

    def run(self, keep_going: bool) -> Ending:
        """The ending of the last start. With `keep_going`, a death that is no error of its own is started again."""
        with self._listening():
            ending = self._run_once()
            for restart in range(MAX_RESTARTS if keep_going else 0):
                if ending.status != INTERRUPTED or self._signals:
                    break
                pause = min(LONGEST_PAUSE_SECONDS, self._first_pause_seconds * 2**restart)
                self._say(f"{ending.message}; restart {restart + 1} of {MAX_RESTARTS} in {pause:g} s")
                self._sleep(pause)
                if self._signals:
                    break
                ending = self._run_once()
        return ending

    def _run_once(self) -> Ending:
        with tempfile.TemporaryDirectory(prefix="nanocode-run-") as folder:
            watched = f"{self._environment.get(WATCHED_PIDS, '')} {os.getpid()}"
            child = subprocess.Popen(
                self._command,
                env={**self._environment, FOLDER: folder, WATCHED_PIDS: watched},
                stdin=subprocess.DEVNULL,
                process_group=0,
            )
            try:
                while child.poll() is None and not self._signals:
                    time.sleep(_POLL_SECONDS)
                if child.returncode is None or child.returncode < 0:
                    self._stop(child, Path(folder))
            finally:
                _kill_group(child)
            return self._ending(child.returncode, Path(folder))

    def _stop(self, child: subprocess.Popen[bytes], folder: Path) -> None:
        """End the orchestrator, and wait for its steps to save. A second signal cuts their time short."""
        if self._signals:
            self._say(f"stopping: running steps have {self._grace_seconds:g} s to save; again to stop at once")
        child.kill()
        child.wait()
        deadline = time.monotonic() + self._grace_seconds + _EXTRA_SECONDS
        while any_running(folder) and self._signals < 2 and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)

    def _ending(self, status: int, folder: Path) -> Ending:
        attempts = read_attempts(folder)
        unfinished = [attempt for attempt in attempts if attempt.state != "finished"]
        errors = [attempt for attempt in unfinished if not attempt.resumable]
        if status == OK:
            return Ending(OK)
        if errors:
            return Ending(FAILED, f"{errors[-1].step}: {errors[-1].message}")
        if self._signals or unfinished or status < 0:
            told = "; ".join(f"{attempt.step}: {attempt.message}" for attempt in unfinished[-2:])
            return Ending(INTERRUPTED, told or "the run was stopped between two steps")
        return Ending(FAILED, f"the flow ended with status {status}: see its last lines above")

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {number: signal.signal(number, self._count) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _count(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self._signals += 1

    def _sleep(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._signals:
            time.sleep(_POLL_SECONDS)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Leave no process of the run behind."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
