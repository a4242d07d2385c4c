"""Run one child process with a wall clock, an output cap, no input and no leftovers.

The child leads its own process group, which is killed as a whole at the end, so that neither a time-out nor a
background child outlives the call. Output is read while the child runs and only its head and tail are kept: a flood
costs no memory.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

READ_BYTES = 65_536
# How often a quiet child is checked for having ended while a background child still holds its output open.
POLL_SECONDS = 0.05


@dataclass(frozen=True)
class Completed:
    """What a command left behind: merged output, exit code (128 + n after signal n), and which bound stopped it."""

    output: str
    exit_code: int
    timed_out: bool = False
    truncated: bool = False
    flooded: bool = False
    notes: tuple[str, ...] = ()


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


def run_bounded(
    arguments: Sequence[str],
    *,
    wall_seconds: float,
    output_bytes: int,
    flood_bytes: int,
    environment: Mapping[str, str],
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
) -> Completed:
    """Run ``arguments`` until they end, the clock strikes or ``flood_bytes`` were written; nothing of it stays behind.

    ``output_bytes`` of stdout and stderr, merged, are kept. Returns as soon as the process itself has ended, whatever
    its background children do. Raises OSError when it cannot be started.
    """
    kept = HeadAndTail(output_bytes)
    deadline = time.monotonic() + wall_seconds
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
        try:
            timed_out = _collect(process, kept, deadline, flood_bytes)
        finally:
            # The group may be gone already; a group that lives on is exactly what must not be left behind.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        code = process.wait()
    exit_code = code if code >= 0 else 128 - code
    return Completed(kept.text(), exit_code, timed_out, kept.truncated, kept.total > flood_bytes)


def _collect(process: subprocess.Popen[bytes], kept: HeadAndTail, deadline: float, flood_bytes: int) -> bool:
    """Read until end of output, end of process or a bound; True when it was the clock."""
    assert process.stdout is not None, "the caller asked for a pipe"
    pipe = process.stdout.fileno()
    os.set_blocking(pipe, False)
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                return True
            ended = process.poll() is not None
            selector.select(0 if ended else min(remaining, POLL_SECONDS))
            state = _drain(pipe, kept, flood_bytes)
            if state == "flood" or (ended and state == "quiet"):
                return False
            if state == "closed":
                return not _ends_before(process, deadline)


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


def _ends_before(process: subprocess.Popen[bytes], deadline: float) -> bool:
    """Wait for a process that has closed its output but may go on working."""
    try:
        process.wait(max(deadline - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        return False
    return True
