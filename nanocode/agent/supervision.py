"""Count what a running command uses in sum, where the kernel only bounds each process by itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
RESIDENT_FIELD = 1
TEMPORARY_FOLDERS = ("/tmp", "/dev/shm")
# The sandbox's own first process, and one that is about to end: the kernel's limit is reached before this one.
NOT_COUNTED = 2


@dataclass(frozen=True)
class Sums:
    """Bounds on a whole process tree: processes and threads together, bytes of memory, files in its temporary folders.

    An empty file takes a kilobyte of the kernel's memory and no byte of a tmpfs's size.
    """

    processes: int
    memory_bytes: int
    temporary_files: int

    def exceeded(self, root: int) -> str:
        """Which bound the descendants of process ``root`` are over, in words; empty when none."""
        tasks = memory = 0
        pids = list(descendants(root))
        for pid in pids:
            tasks += _count(Path(f"/proc/{pid}/task"))
            memory += resident_bytes(pid)
            if tasks - NOT_COUNTED > self.processes:
                return f"more than {self.processes} processes"
            if memory > self.memory_bytes:
                return f"more than {self.memory_bytes} bytes of memory"
        if pids and temporary_files(pids[-1]) > self.temporary_files:
            return f"more than {self.temporary_files} temporary files"
        return ""


def descendants(root: int) -> Iterator[int]:
    """Process ids below ``root``. A child whose parent has ended is a child of the namespace's first process.

    Empty where the kernel does not tell children (CONFIG_PROC_CHILDREN).
    """
    pending = [root]
    while pending:
        current = pending.pop()
        for thread in _names(Path(f"/proc/{current}/task")):
            with suppress(OSError):
                children = Path(f"/proc/{current}/task/{thread}/children").read_text().split()
                pending += map(int, children)
                yield from map(int, children)


def resident_bytes(pid: int) -> int:
    """Memory of a process that is in use now, shared pages included; 0 when it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[RESIDENT_FIELD]) * PAGE_BYTES
    except (OSError, IndexError):
        return 0


def temporary_files(pid: int) -> int:
    """Files in the temporary folders that a process has of its own; 0 when it sees ours, or has ended."""
    total = 0
    for folder in TEMPORARY_FOLDERS:
        with suppress(OSError):
            total += files_apart_from(Path(folder), Path(f"/proc/{pid}/root{folder}"))
    return total


def files_apart_from(ours: Path, its: Path) -> int:
    """Files of the file system at ``its``, 0 when it is ours.

    Opened once: a process that is entering its root leads by the same path to its file system and, a moment later, to
    ours, whose files are many.
    """
    descriptor = os.open(its, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_dev == ours.stat().st_dev:
            return 0
        usage = os.fstatvfs(descriptor)
        return usage.f_files - usage.f_ffree
    finally:
        os.close(descriptor)


def _names(folder: Path) -> list[str]:
    try:
        return [entry.name for entry in os.scandir(folder)]
    except OSError:
        return []


def _count(folder: Path) -> int:
    return len(_names(folder))
