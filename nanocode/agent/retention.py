"""How long the pre-images that undo needs are kept, and how many of them: those that nobody has used for long go first.

Audit logs are never deleted. Undoing an effect whose pre-images are gone changes nothing and says so.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanocode.agent.journal import IMAGES_FOLDER
from nanocode.agent.undo import LOCK, UNFINISHED, locked

DAY_SECONDS = 86_400.0
MEGABYTE = 1_000_000
# Younger ones stay: an image is written before the line of the log that names it.
YOUNG_SECONDS = 3_600.0
HEAD = ".head"
_NAMED = re.compile(rb'"(?:before|after)": "([0-9a-f]{64})"')


@dataclass(frozen=True)
class Retention:
    """Days since a pre-image was last used, and how much all of them may take together."""

    days: float = 30.0
    megabytes: float = 500.0


class _Image(NamedTuple):
    """Light, because there can be very many."""

    used: float
    path: str
    size: int
    digest: str


def make_room(logs: Path, retention: Retention, now: float) -> int:
    """Delete pre-images beside the logs in a folder: those too old, then the oldest until the rest is small enough.

    Those that a running session's log names are kept whatever they take, and all that were used within the last hour.
    Returns how many went. Files go one by one, so one that is killed half-way leaves nothing wrong; while another
    session is at it, or is just keeping one, nothing is done. ``now`` in seconds since 1970. Raises OSError.
    """
    folder = logs / IMAGES_FOLDER
    if not folder.is_dir():
        return 0
    try:
        with locked(folder, wait=False):
            chosen = _chosen(sorted(_images(folder)), _named_by_live_logs(logs, now), retention, now)
            for image in chosen:
                Path(image.path).unlink(missing_ok=True)
    except BlockingIOError:
        return 0
    return len(chosen)


def _chosen(images: list[_Image], named: frozenset[str], retention: Retention, now: float) -> list[_Image]:
    """What goes; ``images`` come with the least recently used first."""
    free = [image for image in images if image.used < now - YOUNG_SECONDS and image.digest not in named]
    excess = sum(image.size for image in images) - retention.megabytes * MEGABYTE
    chosen = []
    for image in free:
        is_old = image.used < now - retention.days * DAY_SECONDS or image.path.endswith(UNFINISHED)
        if is_old or excess > 0:
            chosen.append(image)
            excess -= image.size
    return chosen


def _images(folder: Path) -> Iterator[_Image]:
    for part in os.scandir(folder):
        if part.name == LOCK or not part.is_dir(follow_symlinks=False):
            continue
        for entry in os.scandir(part.path):
            status = entry.stat(follow_symlinks=False)
            yield _Image(status.st_mtime, entry.path, status.st_size, part.name + entry.name)


def _named_by_live_logs(logs: Path, now: float) -> frozenset[str]:
    """Digests in logs that a session holds, or has written to so recently that it is not worth asking."""
    named: set[bytes] = set()
    for head in logs.glob(f"*{HEAD}"):
        log = head.with_name(head.name.removesuffix(HEAD))
        if log.is_file() and (log.stat().st_mtime > now - YOUNG_SECONDS or _is_held(log)):
            named.update(_NAMED.findall(log.read_bytes()))
    return frozenset(digest.decode() for digest in named)


def _is_held(log: Path) -> bool:
    with log.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
