"""The stop request: a flag that stages look at between two pieces of work, so that they can save first.

SIGTERM and SIGINT raise it, and so does the end of the process that started the task: Metaflow passes no signal on to
its tasks, and a task without its orchestrator would go on beside the one that the next run starts. Whoever hears that
the machine is about to be taken away raises it too (steps.notices).
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import FrameType

INTERRUPTED = 75
"""Exit status of work that was stopped and can go on (EX_TEMPFAIL)."""

WATCHED_PIDS = "NANOCODE_WATCHED_PIDS"
"""Environment variable: the processes, besides the parent, without which a task has nobody to work for."""

_POLL_SECONDS = 0.25

_requested = threading.Event()
_looked_at = threading.Event()


def listen(grace_seconds: float, leave: Callable[[], object], watched: Sequence[int] = ()) -> None:
    """From now on a signal, or the end of the parent or of a `watched` process, asks the running stage to stop.

    A stage that never looks at the flag has nothing to save: `leave` is called at once, from another thread. One that
    looks has `grace_seconds` to save and end by itself. Only the main thread may call this.
    """
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _request)
    arguments = (os.getppid(), tuple(watched), grace_seconds, leave)
    threading.Thread(target=_watch, args=arguments, name="stop-request", daemon=True).start()


def request_stop() -> None:
    """Ask the running stage to stop, as a signal does."""
    _requested.set()


def stop_requested() -> bool:
    """Whether to save and stop. Asking is what earns a stage its grace."""
    _looked_at.set()
    return _requested.is_set()


def watched_pids(environment: Mapping[str, str]) -> list[int]:
    """The processes of WATCHED_PIDS."""
    return [int(pid) for pid in environment.get(WATCHED_PIDS, "").split()]


def hush() -> None:
    """Send standard output and error nowhere: their reader is gone, and a stage must still be able to save."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def _request(number: int, frame: FrameType | None) -> None:
    del number, frame
    _requested.set()


def _watch(parent: int, watched: Sequence[int], grace_seconds: float, leave: Callable[[], object]) -> None:
    while not _requested.wait(_POLL_SECONDS):
        orphaned = os.getppid() != parent
        if orphaned:
            hush()
        if orphaned or not all(_exists(pid) for pid in watched):
            _requested.set()
    if _looked_at.is_set():
        time.sleep(grace_seconds)
    leave()


def _exists(pid: int) -> bool:
    """Whether a process is there and not a zombie that its parent has yet to bury."""
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return status.rpartition(b") ")[2][:1] not in b"ZX"
