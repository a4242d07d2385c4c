"""Run one child process with a wall clock, an output cap, bounds on what it uses in sum, no input and no leftovers.

The child leads its own process group, which is killed as a whole at the end, so that neither a time-out nor a
background child outlives the call; of a process namespace, the end is awaited. Output is read while the child runs and
only its head and tail are kept: a flood costs no memory.
"""

from __future__ import annotations

import os
import select
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from nanocode.agent.supervision import Sums

READ_BYTES = 65_536
# How often a quiet child is checked for having ended while a background child still holds its output open.
POLL_SECONDS = 0.05
FIRST_PAUSE_SECONDS = 0.001
# How often a namespace is looked for that is about to start; what runs in it takes longer than that to start and end.
START_SECONDS = 0.004
# A killed namespace ends at once; only a process stuck inside the kernel could take longer.
END_SECONDS = 5.0


@dataclass(frozen=True)
class Completed:
    """What a command left behind: merged output, exit code (128 + n after signal n), and which bound stopped it.

    ``exceeded`` says in words which bound on the sum of its processes was broken, ``notes`` what was undone afterwards.
    """

    output: str
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    flooded: bool = False
    exceeded: str = ""
    notes: tuple[str, ...] = ()

    @property
    def stopped(self) -> bool:
        """Whether a bound ended it before its time."""
        return self.timed_out or self.flooded or bool(self.exceeded)


@dataclass
class HeadAndTail:
    """The first and the last ``capacity // 2`` bytes of a stream, with a marker that says how much lies between."""

    capacity: int
    total: int = 0
    _head: bytearray = field(default_factory=bytearray)
    _tail: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> None:
        self.total += len(data)
        room = self.capacity // 2 - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        del self._tail[: -(self.capacity // 2)]

    @property
    def truncated(self) -> bool:
        return self.total > len(self._head) + len(self._tail)

    def text(self) -> str:
        left_out = self.total - len(self._head) - len(self._tail)
        if not left_out:
            return (self._head + self._tail).decode("utf-8", "replace")
        head, tail = (part.decode("utf-8", "replace") for part in (self._head, self._tail))
        return f"{head}\n... {left_out} bytes left out ...\n{tail}"


@dataclass(frozen=True)
class Bounds:
    """What one child may take: seconds, bytes of output kept, bytes of output after which it is stopped, sums."""

    wall_seconds: float
    output_bytes: int
    flood_bytes: int
    sums: Sums | None = None


def run_bounded(
    arguments: Sequence[str],
    bounds: Bounds,
    *,
    environment: Mapping[str, str],
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    namespace: Callable[[], int | None] | None = None,
) -> Completed:
    """Run ``arguments`` until they end or a bound is reached; nothing of it stays behind.

    stdout and stderr are merged. Returns as soon as the process itself has ended, whatever its background children do.
    ``namespace`` tells the first process of the process namespace that the child makes, once it is there: it is killed,
    and its end, which is the end of all in it, awaited. Raises OSError when the child cannot be started.
    """
    kept = HeadAndTail(bounds.output_bytes)
    with subprocess.Popen(
        list(arguments),
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=folder,
        env=dict(environment),
        start_new_session=True,
        pass_fds=tuple(pass_fds),
    ) as process:
        inside = _Namespace(namespace, process.pid)
        try:
            stopped = _collect(process, kept, bounds, inside)
        finally:
            inside.look()
            # The group may be gone already; a group that lives on is exactly what must not be left behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            inside.end()
        code = process.wait()
    timed_out, exceeded = stopped == TIME, stopped if stopped != TIME else ""
    flooded = kept.total > bounds.flood_bytes
    return Completed(kept.text(), code if code >= 0 else 128 - code, timed_out, kept.truncated, flooded, exceeded)


class _Namespace:
    """A process namespace that the child ``parent`` makes, held by its first process from when that is first seen.

    The child may end before all in the namespace has, and what still runs there could write after the caller has looked
    at what was written.
    """

    def __init__(self, first_process: Callable[[], int | None] | None, parent: int) -> None:
        self._first_process, self._parent = first_process, parent
        self._handle: int | None = None

    @property
    def is_expected(self) -> bool:
        """Whether it is yet to be seen."""
        return self._first_process is not None and self._handle is None

    def look(self) -> None:
        """Take hold of it if it is there. Its parent vouches for its number, which could have gone to a stranger."""
        first = self._first_process() if self._first_process is not None and self._handle is None else None
        if first is None:
            return
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(first)
            # The number may have gone to another process before it was opened; after that it cannot.
            if _parent_of(first) == self._parent:
                self._handle = handle
            else:
                os.close(handle)

    def end(self) -> None:
        """Kill it and return when it is gone."""
        if self._handle is None:
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)
        gone = select.poll()
        gone.register(self._handle, select.POLLIN)
        gone.poll(END_SECONDS * 1000)
        os.close(self._handle)


def _parent_of(pid: int) -> int | None:
    """The process whose child ``pid`` is; None when it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    return int(status.partition("\nPPid:")[2].split()[0])


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Told without taking note of it: until then its number, and its group's, cannot go to a stranger."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        # Whoever started us ignores the end of children: the kernel has taken note already.
        return True


TIME = "time"


def _collect(process: subprocess.Popen[bytes], kept: HeadAndTail, bounds: Bounds, inside: _Namespace) -> str:
    """Read until end of output, end of process or a bound: TIME, what was exceeded in sum, or nothing."""
    assert process.stdout is not None, "the caller asked for a pipe"
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    deadline = time.monotonic() + bounds.wall_seconds
    counted, closed, pause = 0.0, False, FIRST_PAUSE_SECONDS
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while (now := time.monotonic()) < deadline:
            inside.look()
            ended = _has_ended(process)
            if closed and ended:
                return ""
            if bounds.sums is not None and not ended and now - counted >= POLL_SECONDS:
                counted = now
                if exceeded := bounds.sums.exceeded(process.pid):
                    return exceeded
            wait = min(deadline - now, START_SECONDS if inside.is_expected else POLL_SECONDS)
            if closed:
                # It mostly ends a moment later, but it may go on working.
                time.sleep(min(pause, wait))
                pause *= 2
                continue
            selector.select(0 if ended else wait)
            state = _drain(pipe, kept, bounds.flood_bytes)
            if state == "flood" or (ended and state == "quiet"):
                return ""
            closed = state == "closed"
    return TIME


def _drain(pipe: int, kept: HeadAndTail, flood_bytes: int) -> str:
    """Take one helping of what is there: ``data``, ``quiet`` (nothing now), ``closed`` (nothing ever) or ``flood``."""
    try:
        data = os.read(pipe, READ_BYTES)
    except BlockingIOError:
        return "quiet"
    kept.feed(data)
    if not data:
        return "closed"
    return "flood" if kept.total > flood_bytes else "data"
