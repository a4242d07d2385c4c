"""Find what must be kept from a command in a large workspace, again and again, looking only at what has changed."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

# Some file systems keep times to two seconds: a folder that changed this recently may change again unnoticed.
SETTLED_NANOSECONDS = 3_000_000_000
OPEN_MODE = stat.S_IRUSR | stat.S_IXUSR


class _Listing(NamedTuple):
    changed_at: int
    subfolders: tuple[str, ...]
    wanted: tuple[str, ...]
    special: tuple[str, ...]


class Found(NamedTuple):
    """Paths of the entries whose names are wanted, of sockets, pipes and devices, and of folders closed to their owner.

    A closed folder comes with its number and its change time: as long as these stand still, so does all below it.
    """

    wanted: list[str]
    special: list[str]
    closed: dict[tuple[int, int], str]


@dataclass
class Folders:
    """What the last walk saw in each folder.

    A folder's change time (ctime) moves with every entry made, renamed or deleted in it, and nobody can set it, so a
    listing holds as long as it stands still. Walking 100,000 files in 1,000 folders costs 1,000 looks instead of
    reading 100,000 names.
    """

    is_wanted: Callable[[str], bool]
    clock: Callable[[], int] = time.time_ns
    _known: dict[tuple[int, int], _Listing] = field(default_factory=dict, init=False, repr=False)

    def walk(self, root: str) -> Found:
        """What lies below ``root``; links are not followed and wanted folders not entered."""
        seen: dict[tuple[int, int], _Listing] = {}
        found, pending = Found([], [], {}), [root]
        while pending:
            current = pending.pop()
            try:
                status = os.stat(current, follow_symlinks=False)  # noqa: PTH116 - a hot loop over strings
                if _is_closed(status):
                    found.closed[status.st_ino, status.st_ctime_ns] = current
                    continue
                listing = self._listing(current, status, seen)
            except OSError:
                # No permission, or nested too deep for a path: git and we cannot read configuration there either.
                continue
            prefix = current + os.sep
            found.wanted.extend(prefix + name for name in listing.wanted)
            found.special.extend(prefix + name for name in listing.special)
            pending += [prefix + name for name in listing.subfolders]
        self._known = seen
        return found

    def _listing(self, folder: str, status: os.stat_result, seen: dict[tuple[int, int], _Listing]) -> _Listing:
        if not stat.S_ISDIR(status.st_mode):
            raise NotADirectoryError(folder)
        settled = self.clock() - status.st_ctime_ns > SETTLED_NANOSECONDS
        identity = status.st_dev, status.st_ino
        listing = self._known.get(identity)
        if listing is None or listing.changed_at != status.st_ctime_ns:
            listing = _Listing(status.st_ctime_ns, *self._read(folder))
        if settled:
            seen[identity] = listing
        return listing

    def _read(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        subfolders, wanted, special = [], [], []
        with os.scandir(folder) as entries:
            for entry in entries:
                if self.is_wanted(entry.name):
                    wanted.append(entry.name)
                elif entry.is_dir(follow_symlinks=False):
                    subfolders.append(entry.name)
                elif not entry.is_file(follow_symlinks=False) and not entry.is_symlink():
                    special.append(entry.name)
        return tuple(subfolders), tuple(wanted), tuple(special)


def _is_closed(status: os.stat_result) -> bool:
    """Whether we own a folder and cannot look into it as it is; nothing is closed to root."""
    return status.st_uid == os.geteuid() != 0 and status.st_mode & OPEN_MODE != OPEN_MODE
