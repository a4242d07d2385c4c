"""File access that cannot leave the workspace.

Every path is walked from the workspace's own folder, one component at a time, each opened relative to the folder before
it and never through a symbolic link. There is no moment between a check and its use in which swapping a folder for a
link would help, and nothing but regular files is ever read or written.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nanocode.agent.profile import PROJECT
from nanocode.agent.replacing import new_file, remove_stale

MAX_FILE_BYTES = 1_000_000
SHOWN_PATH_CHARACTERS = 200
# Each level of a walk holds a descriptor and a stack frame.
MAX_DEPTH = 100
# What a walk may look at before it gives up: names in one folder are held and sorted, all names cost a system call.
MAX_NAMES = 100_000
MAX_LOOKS = 200_000
NEW_FILE_MODE = 0o644
FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class ToolError(Exception):
    """A tool cannot do what was asked; the message is what the model reads after ``error: ``."""


class Missing(ToolError):
    """There is no such file, or no folder that it could be in."""


class TooManyFiles(Exception):
    """A walk has looked at MAX_LOOKS names without coming to an end."""


@dataclass(frozen=True)
class FileContent:
    """The bytes of a regular file and its state when they were read."""

    data: bytes
    status: os.stat_result

    @property
    def identity(self) -> tuple[int, int, int]:
        """Changes when the file is written or replaced."""
        return self.status.st_ino, self.status.st_size, self.status.st_mtime_ns


@dataclass(frozen=True)
class Workspace:
    """A folder and the only way into it. ``given`` is the path as the caller wrote it, ``root`` without links."""

    root: Path
    given: Path
    _tidied: set[tuple[int, int]] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def at(cls, folder: Path) -> Workspace:
        """Raises NotADirectoryError when ``folder`` is not a folder."""
        root = folder.resolve()
        if not root.is_dir():
            raise NotADirectoryError(f"the workspace {folder} is not a folder: create it or name another")
        return cls(root, folder.absolute())

    def relative(self, path: str) -> PurePosixPath:
        """The path relative to the workspace, ``..`` and ``.`` removed. Raises ToolError when it points outside."""
        if not path or "\0" in path:
            raise ToolError("the path is empty" if not path else "the path holds a zero byte")
        try:
            os.fsencode(path)
        except UnicodeEncodeError:
            raise ToolError("the path is not valid text") from None
        normal = PurePosixPath(os.path.normpath(path))
        if normal.is_absolute():
            for base in (self.root, self.given, PurePosixPath(PROJECT)):
                # Compared by components: /repo-evil is not inside /repo.
                if normal.is_relative_to(base):
                    return normal.relative_to(base)
            raise ToolError(f"outside the workspace: {shown(path)}")
        if normal.parts and normal.parts[0] == "..":
            raise ToolError(f"outside the workspace: {shown(path)}")
        return normal

    def read(self, path: PurePosixPath) -> FileContent:
        """A regular file of at most MAX_FILE_BYTES. Raises ToolError."""
        with self._folder(path.parts[:-1], path) as folder, explained(path):
            if not path.parts:
                raise ToolError(f"is a directory: {shown(path)}")
            return read_regular(folder, path.name, path)

    def kind(self, path: PurePosixPath) -> int | None:
        """The file type bits of what the path names itself (links are not followed), None when nothing is there.

        Raises ToolError when a parent is there and no folder.
        """
        if not path.parts:
            return stat.S_IFDIR
        try:
            with self._folder(path.parts[:-1], path) as folder, explained(path):
                return stat.S_IFMT(os.stat(path.name, dir_fd=folder, follow_symlinks=False).st_mode)
        except Missing:
            return None

    def write(self, path: PurePosixPath, data: bytes, before: FileContent | None) -> None:
        """Replace the file that was read as ``before``, or create one where there was none, in one atomic step.

        Mode and owner are kept. Raises ToolError when the file is no longer the one that was read.
        """
        with self._folder(path.parts[:-1], path, create=before is None) as folder, explained(path):
            self._tidy(folder)
            with new_file(folder, NEW_FILE_MODE) as file:
                _fill(file.descriptor, data, before)
                _refuse_changed(folder, path, before)
                if before is not None:
                    file.replace(path.name)
                    return
                try:
                    file.create(path.name)
                except FileExistsError:
                    raise _exists(path) from None

    def _tidy(self, folder: int) -> None:
        """Once for each folder that is written to."""
        status = os.fstat(folder)
        if (status.st_dev, status.st_ino) not in self._tidied:
            self._tidied.add((status.st_dev, status.st_ino))
            remove_stale(folder, time.time())

    def refuse_existing(self, path: PurePosixPath) -> None:
        """Raise ToolError when the path names anything, or cannot be made because a parent is no folder."""
        for depth in range(1, len(path.parts) + 1):
            kind = self.kind(PurePosixPath(*path.parts[:depth]))
            if kind is None:
                return
        raise _exists(path)

    def remove(self, path: PurePosixPath) -> None:
        """Delete a file. Raises ToolError."""
        with self._folder(path.parts[:-1], path) as folder, explained(path):
            os.unlink(path.name, dir_fd=folder)

    def files(self, path: PurePosixPath, skip: frozenset[str]) -> Iterator[tuple[str, bytes]]:
        """(relative path, bytes) of the readable regular files at or below ``path``, sorted; links are not entered.

        Files over MAX_FILE_BYTES, folders named in ``skip`` and what lies deeper than MAX_DEPTH are left out. Raises
        TooManyFiles after MAX_LOOKS names, or at a folder that holds more than MAX_NAMES.
        """
        if self.kind(path) != stat.S_IFDIR:
            yield str(path), self.read(path).data
            return
        with self._folder(path.parts, path) as folder:
            yield from _files_below(folder, path, skip, itertools.count(1))

    @contextmanager
    def _folder(self, parts: tuple[str, ...], path: PurePosixPath, create: bool = False) -> Iterator[int]:
        """A descriptor of the folder reached by ``parts``, walked without following a link."""
        with explained(path):
            current = os.open(self.root, FOLDER_FLAGS)
        try:
            with explained(path):
                for part in parts:
                    if create:
                        with suppress(FileExistsError):
                            os.mkdir(part, dir_fd=current)
                    following = os.open(part, FOLDER_FLAGS, dir_fd=current)
                    os.close(current)
                    current = following
            yield current
        finally:
            os.close(current)


def shown(path: str | PurePosixPath) -> str:
    """A path as a tool result may show it: valid text, bounded length."""
    text = os.fsencode(str(path)).decode("utf-8", "replace") if _encodable(str(path)) else ascii(str(path))
    return text if len(text) <= SHOWN_PATH_CHARACTERS else text[:SHOWN_PATH_CHARACTERS] + "..."


def _encodable(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


@contextmanager
def explained(path: PurePosixPath) -> Iterator[None]:
    """Turn the system's refusals into short ToolErrors about ``path``."""
    try:
        yield
    except FileNotFoundError:
        raise Missing(f"file not found: {shown(path)}") from None
    except OSError as error:
        # O_NOFOLLOW says ELOOP for a link, or ENOTDIR when a folder was wanted.
        if error.errno == errno.ELOOP:
            raise ToolError(f"is a symbolic link: {shown(path)}") from None
        if error.errno == errno.ENOTDIR:
            raise ToolError(f"a parent is not a directory: {shown(path)}") from None
        raise ToolError(f"{(error.strerror or 'cannot be used').lower()}: {shown(path)}") from None


def read_regular(folder: int, name: str, path: PurePosixPath) -> FileContent:
    """Read ``name`` in an open folder. Raises ToolError for anything but a regular file of bounded size."""
    _refuse_special(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
    # Should the file be swapped for a pipe meanwhile, O_NONBLOCK keeps the open from hanging; the second look refuses.
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _refuse_special(status, path)
        # A file can grow after the look at its size, and some claim to be empty.
        data = file.read(MAX_FILE_BYTES + 1) if status.st_size <= MAX_FILE_BYTES else b""
    if (size := max(len(data), status.st_size)) > MAX_FILE_BYTES:
        raise ToolError(f"file too large: {shown(path)} ({size} bytes, at most {MAX_FILE_BYTES})")
    return FileContent(data, status)


def _refuse_special(status: os.stat_result, path: PurePosixPath) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise ToolError(f"is a directory: {shown(path)}")
    if stat.S_ISLNK(status.st_mode):
        raise ToolError(f"is a symbolic link: {shown(path)}")
    raise ToolError(f"not a regular file: {shown(path)}")


def _fill(descriptor: int, data: bytes, before: FileContent | None) -> None:
    """Write a new file, with mode and owner of the one before, and wait until it is on disk."""
    if before is not None:
        if (before.status.st_uid, before.status.st_gid) != (os.geteuid(), os.getegid()):
            # Only root may give a file away; for others the file becomes theirs, as with any editor.
            with suppress(PermissionError):
                os.fchown(descriptor, before.status.st_uid, before.status.st_gid)
        # Not the bits that run a program as its owner: what they stood for was the old content.
        os.fchmod(descriptor, stat.S_IMODE(before.status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID))
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.fsync(descriptor)


def _exists(path: PurePosixPath) -> ToolError:
    return ToolError(f"{shown(path)} exists; give old_string to change it")


def _refuse_changed(folder: int, path: PurePosixPath, before: FileContent | None) -> None:
    try:
        status = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        if before is None:
            return
        raise
    if before is None:
        raise _exists(path)
    if FileContent(b"", status).identity != before.identity:
        raise ToolError(f"{shown(path)} changed since it was read; read it again")


def _files_below(
    folder: int, path: PurePosixPath, skip: frozenset[str], looks: Iterator[int]
) -> Iterator[tuple[str, bytes]]:
    """Depth first in sorted order: a folder's files and subfolders by name."""
    for name in _sorted_names(folder):
        if next(looks) > MAX_LOOKS:
            raise TooManyFiles
        below = path / name
        try:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if stat.S_ISREG(status.st_mode) and status.st_size <= MAX_FILE_BYTES:
                yield shown(below), read_regular(folder, name, below).data
            elif stat.S_ISDIR(status.st_mode) and name not in skip and len(below.parts) <= MAX_DEPTH:
                child = os.open(name, FOLDER_FLAGS, dir_fd=folder)
                try:
                    yield from _files_below(child, below, skip, looks)
                finally:
                    os.close(child)
        except (OSError, ToolError):
            # Unreadable, or changed while we look: a search goes on without it, as grep does.
            continue


def _sorted_names(folder: int) -> list[str]:
    with os.scandir(folder) as entries:
        names = [entry.name for entry in itertools.islice(entries, MAX_NAMES + 1)]
    if len(names) > MAX_NAMES:
        raise TooManyFiles
    return sorted(names)
