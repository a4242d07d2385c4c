"""Taking back what the agent did to files: pre-images, and which effect they belong to.

An effect is one edit or one command. Its pre-images are kept by content, on disk where there is an audit log to read
the effects from after a restart, in memory otherwise. Nothing is restored over work that came later: every file of an
effect must be as the effect left it, or none is touched.

What undo removes or overwrites is kept as well, so that a wrong undo loses nothing. `nanocode.agent.watching` says what
of a command's work can be taken back.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Protocol

from nanocode.agent.files import FileContent, ToolError, Workspace, shown

NAMED_PATHS = 5
LOCK = "lock"
UNFINISHED = ".tmp"


@dataclass(frozen=True)
class FileChange:
    """What happened to one file: SHA-256 before and after (None: no file) and its permissions before."""

    path: str
    before: str | None
    after: str | None
    mode: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "before": self.before, "after": self.after, "mode": self.mode}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> FileChange:
        return cls(value["path"], value["before"], value["after"], value["mode"])


@dataclass(frozen=True)
class Effect:
    """The changes of one call, and how many more there were that cannot be taken back."""

    call: int
    tool: str
    changes: tuple[FileChange, ...]
    uncovered: int = 0


class Images(Protocol):
    """Pre-images by their SHA-256."""

    def put(self, data: bytes) -> str: ...

    def use(self, digests: Iterable[str]) -> None:
        """These are needed still; one that is gone is no error."""

    def get(self, digest: str) -> bytes:
        """Raises ToolError when it is gone or damaged."""


@dataclass
class MemoryImages:
    """Pre-images until the process ends."""

    _data: dict[str, bytes] = field(default_factory=dict, init=False)

    def put(self, data: bytes) -> str:
        digest = sha256(data)
        self._data[digest] = data
        return digest

    def use(self, digests: Iterable[str]) -> None:
        """Nothing: they stay as long as the process."""

    def get(self, digest: str) -> bytes:
        return self._data[digest]


@dataclass(frozen=True)
class DiskImages:
    """Pre-images in a folder that only its owner can read; several sessions may share it.

    A file's time of change is when a session last had a use for it: `nanocode.agent.retention` goes by that.
    """

    folder: Path

    def put(self, data: bytes) -> str:
        """On disk when this returns."""
        digest = sha256(data)
        path = self._path(digest)
        with locked(self.folder):
            if _holds(path, data):
                os.utime(path)
            else:
                _write(path, data)
        return digest

    def use(self, digests: Iterable[str]) -> None:
        """Start their time anew."""
        if self.folder.is_dir():
            with locked(self.folder):
                for digest in digests:
                    with suppress(FileNotFoundError):
                        os.utime(self._path(digest))

    def get(self, digest: str) -> bytes:
        try:
            data = self._path(digest).read_bytes()
        except OSError:
            raise ToolError("the file's earlier content is gone") from None
        if sha256(data) != digest:
            raise ToolError("the file's earlier content was damaged")
        return data

    def _path(self, digest: str) -> Path:
        return self.folder / digest[:2] / digest[2:]


@contextmanager
def locked(folder: Path, wait: bool = True) -> Iterator[None]:
    """Alone with the images of a folder, which is made. Without ``wait``, raises BlockingIOError when another is."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(descriptor)


def _holds(path: Path, data: bytes) -> bool:
    """A crash can have torn what lies under a name."""
    try:
        return path.stat().st_size == len(data) and path.read_bytes() == data
    except FileNotFoundError:
        return False


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True, mode=0o700)
    temporary = path.with_name(path.name + UNFINISHED)
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        # Under its last name: the file systems of Linux keep that together with the content.
        temporary.replace(path)
        os.fsync(descriptor)


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def restore(files: Workspace, images: Images, effect: Effect) -> str:
    """Put every file of the effect back; names them. Raises ToolError, and changes nothing, when one changed since."""
    pending = []
    for change in effect.changes:
        current = _current(files, change.path)
        found = None if current is None else sha256(current.data)
        if found == change.before != change.after:
            continue
        if found != change.after:
            raise ToolError(f"{shown(change.path)} changed since that {'edit' if effect.tool == 'Edit' else 'command'}")
        pending.append((change, current, None if change.before is None else images.get(change.before)))
    for change, current, before in pending:
        if current is not None:
            images.put(current.data)
        _put_back(files, change, current, before)
    names = [shown(change.path) for change in effect.changes]
    more = f" and {len(names) - NAMED_PATHS} more" if len(names) > NAMED_PATHS else ""
    lost = f" (not {effect.uncovered} more: binary or too large to keep)" if effect.uncovered else ""
    return ", ".join(names[:NAMED_PATHS]) + more + lost


def _put_back(files: Workspace, change: FileChange, current: FileContent | None, before: bytes | None) -> None:
    path = PurePosixPath(change.path)
    if before is None:
        files.remove(path)
        return
    if current is None or current.data != before:
        files.write(path, before, current)
    written = files.read(path).status
    if change.mode is None or stat.S_IMODE(written.st_mode) == change.mode:
        return
    descriptor = os.open(files.root / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The path may lead elsewhere by now; the file that was just written is the one that was read.
        if os.path.samestat(os.fstat(descriptor), written):
            os.fchmod(descriptor, change.mode)
    finally:
        os.close(descriptor)


def _current(files: Workspace, path: str) -> FileContent | None:
    """What is there now; below a file, which may have taken a folder's place, there is nothing."""
    for depth in range(1, len(parts := PurePosixPath(path).parts)):
        if files.kind(PurePosixPath(*parts[:depth])) == stat.S_IFREG:
            return None
    return None if files.kind(PurePosixPath(path)) is None else files.read(PurePosixPath(path))
