"""A walk that remembers finds what a fresh walk finds, whatever happens in between."""

import os
import time
from pathlib import Path

from nanocode.agent.folders import SETTLED_NANOSECONDS, Folders


def folders(later: int = 2 * SETTLED_NANOSECONDS) -> Folders:
    """By its clock, every folder has stood still for a while; with ``later`` 0 none has."""
    return Folders(lambda name: name == ".git", clock=lambda: time.time_ns() + later)


def test_changes_between_walks_are_seen(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    remembering = folders()
    assert remembering.walk(str(tmp_path)).wanted == []
    (tmp_path / "a" / "b" / ".git").mkdir()
    assert remembering.walk(str(tmp_path)).wanted == [str(tmp_path / "a" / "b" / ".git")]
    (tmp_path / "a").rename(tmp_path / "c")
    assert remembering.walk(str(tmp_path)).wanted == [str(tmp_path / "c" / "b" / ".git")]
    (tmp_path / "c" / "b" / ".git").rmdir()
    (tmp_path / "c" / "b" / "git").symlink_to(tmp_path)
    assert remembering.walk(str(tmp_path)).wanted == []


def test_a_change_whose_time_was_set_back_is_seen(tmp_path: Path) -> None:
    # Anybody can set the modification time of what is his.
    (tmp_path / "a").mkdir()
    before = (tmp_path / "a").stat()
    remembering = folders()
    remembering.walk(str(tmp_path))
    (tmp_path / "a" / ".git").mkdir()
    os.utime(tmp_path / "a", ns=(before.st_atime_ns, before.st_mtime_ns))
    assert remembering.walk(str(tmp_path)).wanted == [str(tmp_path / "a" / ".git")]


def test_folders_that_stand_still_are_not_read_again(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    reads = []

    class Counting(Folders):
        def _read(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
            reads.append(folder)
            return super()._read(folder)

    counting = Counting(lambda name: name == ".git", clock=folders().clock)
    counting.walk(str(tmp_path))
    assert len(reads) == 4
    (tmp_path / "b" / "new").touch()
    counting.walk(str(tmp_path))
    assert reads[4:] == [str(tmp_path / "b")]


def test_a_folder_that_has_just_changed_is_read_again(tmp_path: Path) -> None:
    # A second change within one tick of the clock leaves the same time behind.
    fresh = folders(later=0)
    fresh.walk(str(tmp_path))
    assert fresh._known == {}
