"""How each attempt at a step ended, told to whoever supervises the run (`nanocode run`).

Metaflow turns every end of a step but success into exit status 1. An attempt therefore writes a small file of its own,
and holds a lock on it that the kernel releases with the process: a file that says "running" and is not locked belongs
to an attempt that was killed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

FOLDER = "NANOCODE_ATTEMPTS"
"""Environment variable: where attempts write. Unset, nobody supervises and nothing is written."""

State = Literal["running", "finished", "interrupted", "failed", "killed"]


@dataclass(frozen=True)
class Attempt:
    """One attempt at a step. `transient`: the same attempt may succeed later."""

    step: str
    state: State
    message: str = ""
    transient: bool = False

    @property
    def resumable(self) -> bool:
        """Whether starting again can help: not after an error that would only come back."""
        return self.state in ("interrupted", "killed") or (self.state == "failed" and self.transient)


class Reporter:
    """The running attempt's own file, open (and locked) as long as the process lives; without a folder, nothing."""

    def __init__(self, step: str, environment: Mapping[str, str]) -> None:
        self._step = step
        self._descriptor = -1
        folder = environment.get(FOLDER)
        if folder and Path(folder).is_dir():
            self._descriptor = os.open(Path(folder) / f"{os.getpid()}.json", os.O_WRONLY | os.O_CREAT, 0o644)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        self._write(Attempt(step, "running"))

    def end(self, state: State, message: str = "", transient: bool = False) -> None:
        """Say how the attempt ended. The lock stays until the process is gone."""
        self._write(Attempt(self._step, state, message, transient))

    def _write(self, attempt: Attempt) -> None:
        if self._descriptor < 0:
            return
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, json.dumps(asdict(attempt)).encode(), 0)


def read_attempts(folder: Path) -> list[Attempt]:
    """The attempts of a run, oldest first. One that ended without a word was killed."""
    found = []
    for path in sorted(folder.glob("*.json"), key=lambda path: (path.stat().st_ctime_ns, path.name)):
        text = path.read_text(encoding="utf-8")
        attempt = Attempt(**json.loads(text)) if text else Attempt("a step", "running")
        if attempt.state == "running" and not _locked(path):
            attempt = Attempt(attempt.step, "killed", "was killed")
        found.append(attempt)
    return found


def any_running(folder: Path) -> bool:
    """Whether the process of any attempt is still there."""
    return any(_locked(path) for path in folder.glob("*.json"))


def _locked(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
