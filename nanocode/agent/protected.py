"""Paths in a workspace that the agent must never write, whether they exist yet or not.

Git runs hooks and configuration, we read ``.nanocode`` and the constitution: whoever can write them from inside a
sandbox runs code outside of it later. Existing ones are mounted read-only; one that a command newly made is renamed out
of the way, never deleted, because a command can move precious data there.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from nanocode.agent.folders import Folders

PROTECTED_NAMES = frozenset({".git", ".nanocode", "soul.md"})
BLOCKED_SUFFIX = ".blocked"


def is_protected(path: str | PurePosixPath) -> bool:
    """Whether a path relative to the workspace names a protected file or folder, or lies in one. Case is ignored."""
    return any(part.casefold() in PROTECTED_NAMES for part in PurePosixPath(path).parts)


@dataclass(frozen=True)
class Identity:
    """Stays the same when a parent folder is moved and when the content changes.

    A deleted link's inode number is given to the next file made, hence kind and target; folders and files are mount
    points while a command runs and cannot be deleted by it.
    """

    device: int
    inode: int
    kind: int
    link_target: str

    @classmethod
    def of(cls, path: Path) -> Identity:
        status = path.lstat()
        target = str(path.readlink()) if stat.S_ISLNK(status.st_mode) else ""
        return cls(status.st_dev, status.st_ino, stat.S_IFMT(status.st_mode), target)


def protected_folders() -> Folders:
    """A walk for protected names that remembers the folders it has seen."""
    return Folders(lambda name: name.casefold() in PROTECTED_NAMES)


@dataclass(frozen=True)
class ProtectedPaths:
    """The protected paths of a workspace at one moment, with what tells each from a newcomer.

    ``special`` are its sockets, pipes and devices: whoever listens at one of them listens outside of the sandbox.
    ``closed`` are folders that their owner cannot look into, by number and change time.
    """

    identities: dict[str, Identity]
    special: tuple[str, ...] = ()
    closed: dict[tuple[int, int], str] = field(default_factory=dict)
    folders: Folders = field(default_factory=protected_folders, compare=False, repr=False)

    @classmethod
    def find(cls, workspace: Path, folders: Folders | None = None) -> ProtectedPaths:
        """Walk the workspace without following links; protected folders are not entered.

        ``folders`` remembers earlier walks of the same workspace.
        """
        folders = folders or protected_folders()
        found = folders.walk(str(workspace))
        identities = {}
        for path in map(Path, found.wanted):
            with suppress(FileNotFoundError):
                identities[str(path.relative_to(workspace))] = Identity.of(path)
        special = sorted(str(Path(path).relative_to(workspace)) for path in found.special)
        closed = {key: str(Path(path).relative_to(workspace)) for key, path in found.closed.items()}
        return cls(identities, tuple(special), closed, folders)

    def existing(self, workspace: Path) -> list[str]:
        """Paths to mount read-only, sorted. A link is replaced by its target, or left out when that lies outside."""
        mounts = set()
        for path in self.identities:
            target = (workspace / path).resolve()
            if target.is_relative_to(workspace) and target.exists() and target != workspace:
                mounts.add(str(target.relative_to(workspace)))
        return sorted(mounts)

    def undo_new(self, workspace: Path) -> tuple[str, ...]:
        """Rename what has appeared since `find`; one note for each. What was known elsewhere has only moved.

        A folder that was closed in the meantime is opened, or it would be looked into by nobody but the next command.
        """
        now = ProtectedPaths.find(workspace, self.folders)
        notes = []
        while newly_closed := [path for key, path in now.closed.items() if key not in self.closed]:
            for path in newly_closed:
                (workspace / path).chmod((workspace / path).stat().st_mode | stat.S_IRWXU)
                notes.append(f"opened {path}: it could not be looked into")
            now = ProtectedPaths.find(workspace, self.folders)
        known = set(self.identities.values())
        for path, identity in sorted(now.identities.items()):
            if identity not in known:
                renamed = _free_name(workspace / path)
                _rename(workspace / path, renamed)
                notes.append(f"renamed {path} to {renamed.name}: it is protected")
        return tuple(notes)


def _rename(path: Path, renamed: Path) -> None:
    """Also in a folder that its owner may not write at the moment."""
    try:
        path.rename(renamed)
    except PermissionError:
        mode = path.parent.stat().st_mode
        path.parent.chmod(mode | stat.S_IRWXU)
        path.rename(renamed)
        path.parent.chmod(mode)


def _free_name(path: Path) -> Path:
    candidate, number = path.with_name(path.name + BLOCKED_SUFFIX), 1
    while os.path.lexists(candidate):
        number += 1
        candidate = path.with_name(f"{path.name}{BLOCKED_SUFFIX}-{number}")
    return candidate
