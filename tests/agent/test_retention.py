"""Pre-images make room when nobody has used them for long, and never those of a session that runs."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanocode.agent.audit import AuditLog
from nanocode.agent.files import ToolError
from nanocode.agent.policy import Policy
from nanocode.agent.retention import DAY_SECONDS, YOUNG_SECONDS, Retention, make_room
from nanocode.agent.tools import Toolbox
from nanocode.agent.undo import DiskImages, locked
from nanocode.conversation import ToolCall

NOW = time.time()
TEN_DAYS = Retention(days=10, megabytes=1)
EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})


@pytest.fixture
def images(tmp_path: Path) -> DiskImages:
    return DiskImages(tmp_path / "logs" / "before")


@pytest.fixture
def keep(images: DiskImages) -> Callable[[bytes, float], Path]:
    """Keeps some bytes that were last used so many days before NOW."""

    def put(data: bytes, days: float) -> Path:
        digest = images.put(data)
        path = images.folder / digest[:2] / digest[2:]
        age(path, days)
        return path

    return put


def age(path: Path, days: float) -> None:
    os.utime(path, (NOW - days * DAY_SECONDS,) * 2)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    root.mkdir()
    (root / "a.py").write_text("x = 1\n")
    return root


def test_what_nobody_has_used_for_too_long_goes(images: DiskImages, keep: Callable[[bytes, float], Path]) -> None:
    old, older, recent = keep(b"old", 11), keep(b"older", 400), keep(b"recent", 9)
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 2
    assert [path.exists() for path in (old, older, recent)] == [False, False, True]
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 0


def test_what_is_kept_again_is_as_new(images: DiskImages, keep: Callable[[bytes, float], Path]) -> None:
    old = keep(b"old", 11)
    images.put(b"old")
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 0 and old.exists()


def test_the_oldest_go_until_the_rest_is_small_enough(images: DiskImages, keep: Callable[[bytes, float], Path]) -> None:
    paths = [keep(bytes([day]) * 300_000, day) for day in (5, 1, 4, 2, 3)]
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 2
    assert [path.exists() for path in paths] == [False, True, False, True, True]


def test_the_youngest_stay_whatever_they_take(images: DiskImages, keep: Callable[[bytes, float], Path]) -> None:
    """Their line in a log may not be written yet."""
    young, old = keep(b"y" * 3_000_000, YOUNG_SECONDS / DAY_SECONDS / 2), keep(b"o", 1)
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 1
    assert young.exists() and not old.exists()


def test_what_a_running_session_may_undo_stays_and_goes_when_it_has_ended(
    images: DiskImages, tmp_path: Path, workspace: Path
) -> None:
    log = tmp_path / "logs" / "session.jsonl"
    with AuditLog(log) as audit:
        toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
        assert toolbox.execute(EDIT).ok
        for path in [*images.folder.glob("*/*"), log]:
            age(path, 365)
        assert make_room(log.parent, Retention(days=0, megabytes=0), NOW) == 0
        assert toolbox.undo() == "a.py"
    for path in [*images.folder.glob("*/*"), log]:
        age(path, 365)
    assert make_room(log.parent, TEN_DAYS, NOW) == 2, "before and after"


def test_what_a_session_may_undo_that_was_opened_again_counts_from_then(
    images: DiskImages, tmp_path: Path, workspace: Path
) -> None:
    log = tmp_path / "logs" / "session.jsonl"
    for _ in range(2):
        with AuditLog(log) as audit:
            toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
            toolbox.execute(EDIT)
        (image,) = images.folder.glob("*/*")
        opened = image.stat().st_mtime
        age(image, 365)
    with AuditLog(log) as audit:
        Toolbox(workspace, Policy("auto"), None, audit=audit)
    assert image.stat().st_mtime >= opened


def test_undo_without_its_pre_image_changes_nothing(images: DiskImages, tmp_path: Path, workspace: Path) -> None:
    log = tmp_path / "logs" / "session.jsonl"
    with AuditLog(log) as audit:
        Toolbox(workspace, Policy("auto"), None, audit=audit).execute(EDIT)
    for path in [*images.folder.glob("*/*"), log]:
        age(path, 365)
    assert make_room(log.parent, TEN_DAYS, NOW) == 1
    with AuditLog(log) as audit, pytest.raises(ToolError, match="earlier content is gone"):
        Toolbox(workspace, Policy("auto"), None, audit=audit).undo()
    assert (workspace / "a.py").read_text() == "x = 2\n"


def test_what_a_killed_session_had_not_finished_writing_goes(images: DiskImages) -> None:
    images.put(b"x")
    (image,) = images.folder.glob("*/*")
    fresh, stale = image.with_name(f"{image.name}.tmp"), image.with_name("0.tmp")
    for path, days in ((fresh, 0.001), (stale, 0.1), (image, 0.1)):
        path.touch()
        age(path, days)
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 1
    assert fresh.exists() and image.exists() and not stale.exists()


def test_one_that_is_killed_half_way_leaves_the_rest_to_the_next(
    images: DiskImages, keep: Callable[[bytes, float], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [keep(bytes([day]), day) for day in (11, 12, 13)]
    unlink, left = Path.unlink, iter([True, False])

    def killed(path: Path, missing_ok: bool = False) -> None:
        if not next(left):
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as half_way:
        half_way.setattr(Path, "unlink", killed)
        with pytest.raises(KeyboardInterrupt):
            make_room(images.folder.parent, TEN_DAYS, NOW)
    assert sum(path.exists() for path in paths) == 2
    assert make_room(images.folder.parent, TEN_DAYS, NOW) == 2


def test_beside_another_session_that_is_at_it_nothing_is_done(
    images: DiskImages, keep: Callable[[bytes, float], Path]
) -> None:
    old = keep(b"old", 11)
    with locked(images.folder):
        assert make_room(images.folder.parent, TEN_DAYS, NOW) == 0 and old.exists()


@pytest.fixture
def sweeping(images: DiskImages) -> Iterator[None]:
    """Another session makes room again and again."""
    done = threading.Event()

    def sweep() -> None:
        while not done.is_set():
            make_room(images.folder.parent, Retention(days=0, megabytes=0), NOW)

    sweeper = threading.Thread(target=sweep)
    sweeper.start()
    yield
    done.set()
    sweeper.join()


@pytest.mark.usefixtures("sweeping")
def test_what_was_just_kept_is_there_while_another_session_makes_room(images: DiskImages) -> None:
    for _ in range(300):
        digest = images.put(b"x")
        assert images.get(digest) == b"x"
        age(images.folder / digest[:2] / digest[2:], 365)


def test_where_nothing_was_ever_kept_nothing_is_made(tmp_path: Path) -> None:
    assert make_room(tmp_path, TEN_DAYS, NOW) == 0 and list(tmp_path.iterdir()) == []
