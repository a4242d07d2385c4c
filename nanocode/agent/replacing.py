"""A file takes its place in one step, and whoever is killed in between leaves nothing.

What is written has no name (O_TMPFILE) and goes with its process. Only where it is to replace another file it has a
temporary name for a moment, because a link replaces nothing; on systems and file systems without files that have no
name it has that name from the start. What a process killed just then has left there is removed by `remove_stale`.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

STALE_SECONDS = 3_600.0
MAX_NAMES = 100_000
TEMPORARY = re.compile(r"\.nanocode-[0-9a-f]{16}\.tmp")


@dataclass
class NewFile:
    """An open file that is not in its place yet. ``name`` is its temporary one, None while it has none."""

    folder: int
    descriptor: int
    name: str | None

    def create(self, name: str) -> None:
        """Take a place that is free. Raises FileExistsError when it is not."""
        if self.name is None:
            _link(self.descriptor, self.folder, name)
        else:
            try:
                os.link(self.name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder, follow_symlinks=False)
            except FileExistsError:
                raise
            except OSError:
                # A file system without links: between the caller's look and this, somebody may have taken the place.
                self.replace(name)

    def replace(self, name: str) -> None:
        """Take the place of whatever stands there, or a free one."""
        if self.name is None:
            self.name = temporary_name()
            _link(self.descriptor, self.folder, self.name)
        os.rename(self.name, name, src_dir_fd=self.folder, dst_dir_fd=self.folder)


@contextmanager
def new_file(folder: int, mode: int) -> Iterator[NewFile]:
    """A new file for a folder that is open; what is not in its place at the end is gone. Raises OSError."""
    name, descriptor = None, _nameless(folder, mode)
    if descriptor is None:
        name = temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, mode, dir_fd=folder)
    made = NewFile(folder, descriptor, name)
    try:
        yield made
    finally:
        os.close(descriptor)
        if made.name is not None:
            with suppress(FileNotFoundError):
                os.unlink(made.name, dir_fd=folder)


def temporary_name() -> str:
    """One that nobody has, and that `remove_stale` knows."""
    return f".nanocode-{secrets.token_hex(8)}.tmp"


def remove_stale(folder: int, now: float) -> None:
    """Remove temporary files of ours that nobody can be writing any more. ``now`` in seconds since 1970.

    One that cannot be looked at or removed stays; of a folder with very many names only the first are looked at.
    """
    with os.scandir(folder) as entries:
        for entry in islice(entries, MAX_NAMES):
            if TEMPORARY.fullmatch(entry.name) is None:
                continue
            with suppress(OSError):
                status = os.stat(entry.name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode) and status.st_mtime < now - STALE_SECONDS:
                    os.unlink(entry.name, dir_fd=folder)


def _nameless(folder: int, mode: int) -> int | None:
    """A descriptor of a file without a name; None where there are none, or where none can be given a name."""
    if not hasattr(os, "O_TMPFILE") or not os.path.isdir("/proc/self/fd"):  # noqa: PTH112 - a constant path
        return None
    try:
        return os.open(".", os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, mode, dir_fd=folder)
    except OSError:
        # Whatever else is wrong with the folder, the attempt with a name says so in the usual words.
        return None


def _link(descriptor: int, folder: int, name: str) -> None:
    """Give a nameless file its first name. By way of /proc: naming it by descriptor alone takes a capability."""
    os.link(f"/proc/self/fd/{descriptor}", name, dst_dir_fd=folder, follow_symlinks=True)
