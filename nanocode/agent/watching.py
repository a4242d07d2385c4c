"""What a command changed in the workspace, found by looking before and after it.

Covered are regular files that are text, as far as the limits on files and bytes reach (the shallowest come first), and
files that are new. Not covered: binary files and files over the size limit that existed before, what lies beyond the
limits or in a folder that cannot be read, folders, links and devices, protected paths (which a sandboxed command cannot
write), and a command during which the agent itself is killed. When something disappears that is not covered, new files
are not either: it may have been moved there, and undo must not delete the only copy. What others change while a command
runs is taken for its work.
"""

from __future__ import annotations

import os
import stat
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nanocode.agent.files import MAX_FILE_BYTES, ToolError, Workspace
from nanocode.agent.protected import PROTECTED_NAMES
from nanocode.agent.undo import FileChange, Images, sha256

WATCHED_BYTES = 16_000_000
WATCHED_ENTRIES = 20_000


@dataclass(frozen=True)
class _File:
    """A file at one moment. ``data`` is None for what is not kept.

    Its identity is device, inode, size and times; the time of change is the one that a command cannot set.
    """

    identity: tuple[int, ...]
    mode: int
    data: bytes | None

    @classmethod
    def of(cls, status: os.stat_result, data: bytes | None) -> _File:
        return cls(_identity(status), stat.S_IMODE(status.st_mode), data)


@dataclass
class _Walk:
    """Regular files with their status, protected paths, and whether there is more than was seen."""

    files: dict[str, os.stat_result] = field(default_factory=dict)
    protected: set[str] = field(default_factory=set)
    complete: bool = True


@dataclass
class Watch:
    """Looks before a command, and says what changed after it. Contents are read once, then only when they change."""

    files: Workspace
    total_bytes: int = WATCHED_BYTES
    entries: int = WATCHED_ENTRIES
    _seen: dict[str, _File] = field(default_factory=dict, init=False)
    _walk: _Walk = field(default_factory=_Walk, init=False)

    def look(self) -> None:
        """Keep the workspace as it is now."""
        left = self.total_bytes
        seen: dict[str, _File] = {}
        self._walk = _walked(self.files.root, self.entries)
        for path, status in self._walk.files.items():
            known = self._seen.get(path)
            if known is None or known.identity != _identity(status):
                data = self._read(path) if status.st_size <= min(left, MAX_FILE_BYTES) else None
                known = _File.of(status, None if data is None or b"\0" in data else data)
            seen[path] = known
            left -= len(known.data or b"")
        self._seen = seen

    def changes(self, images: Images) -> tuple[tuple[FileChange, ...], int]:
        """What is different since `look`, pre-images put away, and how many differences cannot be taken back."""
        now = _walked(self.files.root, self.entries)
        # A walk that stops early misses what is still there.
        kinds = {path: self._kind(path) for path in self._seen if path not in now.files}
        gone = {path for path, kind in kinds.items() if kind is None}
        moved = any(self._seen[path].data is None for path in gone) or bool(self._walk.protected - now.protected)
        found, uncovered = [], sum(kind not in (None, stat.S_IFREG) for kind in kinds.values())
        for path in sorted(gone | now.files.keys()):
            before, status = self._seen.get(path), now.files.get(path)
            if before is not None and status is not None and before.identity == _identity(status):
                continue
            certain = self._walk.complete and not moved if before is None else before.data is not None
            change = self._change(path, before, status) if certain else None
            if change is None:
                uncovered += 1
            elif change.before != change.after or status is None or stat.S_IMODE(status.st_mode) != change.mode:
                if before is not None and before.data is not None:
                    images.put(before.data)
                found.append(change)
        return tuple(found), uncovered

    def _change(self, path: str, before: _File | None, status: os.stat_result | None) -> FileChange | None:
        """None when what is there now cannot be read: undo could not tell whether it has changed since."""
        data = None if status is None else self._read(path)
        if status is not None and data is None:
            return None
        after = None if data is None else sha256(data)
        if before is None or before.data is None:
            return FileChange(path, None, after)
        return FileChange(path, sha256(before.data), after, before.mode)

    def _read(self, path: str) -> bytes | None:
        try:
            return self.files.read(PurePosixPath(path)).data
        except ToolError:
            return None

    def _kind(self, path: str) -> int | None:
        try:
            return self.files.kind(PurePosixPath(path))
        except ToolError:
            return None


def _identity(status: os.stat_result) -> tuple[int, ...]:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _walked(root: Path, limit: int) -> _Walk:
    """The shallowest first, by name; links are not followed, protected folders not entered."""
    walk, pending, entries = _Walk(), deque([""]), 0
    while pending:
        folder = pending.popleft()
        try:
            found = sorted(os.scandir(root / folder), key=lambda entry: entry.name)
        except OSError:
            walk.complete = False
            continue
        for entry in found:
            entries += 1
            if entries > limit:
                walk.complete = False
                return walk
            path = f"{folder}/{entry.name}" if folder else entry.name
            if entry.name.casefold() in PROTECTED_NAMES:
                walk.protected.add(path)
            elif entry.is_dir(follow_symlinks=False):
                pending.append(path)
            else:
                _note(walk, path, entry)
    return walk


def _note(walk: _Walk, path: str, entry: os.DirEntry[str]) -> None:
    try:
        status = entry.stat(follow_symlinks=False)
    except OSError:
        walk.complete = False
        return
    if stat.S_ISREG(status.st_mode):
        walk.files[path] = status
