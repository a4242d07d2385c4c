"""What a command changed is found, and what was not seen before is never taken for new."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanocode.agent.files import MAX_FILE_BYTES, Workspace
from nanocode.agent.undo import FileChange, MemoryImages, sha256
from nanocode.agent.watching import Watch


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "f").write_text(f"{number}")
    return tmp_path


def watching(root: Path, **limits: int) -> Watch:
    watch = Watch(Workspace.at(root), **limits)
    watch.look()
    return watch


def test_the_shallowest_files_are_kept_when_not_all_fit(root: Path) -> None:
    (root / "top").write_text("12345678")
    watch = watching(root, total_bytes=10)
    for path in ("top", "0/f", "1/f", "2/f", "3/f"):
        (root / path).write_text("new")
    changes, uncovered = watch.changes(MemoryImages())
    assert ([change.path for change in changes], uncovered) == (["0/f", "1/f", "top"], 2)


@pytest.mark.parametrize("limit", [4, 5, 6])
def test_beyond_the_limit_nothing_is_taken_for_new_or_gone(root: Path, limit: int) -> None:
    watch = watching(root, entries=limit)
    (root / "0" / "f").unlink()
    for number in range(3):
        (root / f"0{number}").write_text("pushes others over the limit")
    changes, uncovered = watch.changes(MemoryImages())
    assert changes == (() if limit < 5 else (FileChange("0/f", sha256(b"0"), None, 0o644),))
    assert uncovered >= 1


def test_an_unreadable_folder_is_no_reason_to_take_its_files_for_new(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if path == root / "3":
            raise PermissionError
        return scandir(path)

    with monkeypatch.context() as closed:
        closed.setattr("nanocode.agent.watching.os.scandir", refuse)
        watch = watching(root)
    assert watch.changes(MemoryImages()) == ((), 1)


def test_a_file_that_became_a_link_or_too_large_is_counted_and_not_restored(root: Path) -> None:
    watch = watching(root)
    (root / "0" / "f").unlink()
    (root / "0" / "f").symlink_to(root / "1" / "f")
    (root / "1" / "f").write_bytes(b"x" * (MAX_FILE_BYTES + 1))
    assert watch.changes(MemoryImages()) == ((), 2)


def test_a_set_clock_hides_nothing(root: Path) -> None:
    watch = watching(root)
    path = root / "0" / "f"
    status = path.stat()
    path.write_text("9")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [change.path for change in watch.changes(MemoryImages())[0]] == ["0/f"]


def test_contents_are_read_again_only_when_they_changed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    read = Workspace.read
    monkeypatch.setattr(Workspace, "read", lambda self, path: reads.append(str(path)) or read(self, path))
    watch = watching(root)
    assert sorted(reads) == ["0/f", "1/f", "2/f", "3/f"]
    reads.clear()
    (root / "2" / "f").write_text("new")
    watch.look()
    assert reads == ["2/f"]


def test_names_that_are_no_text_are_kept_as_they_are(root: Path) -> None:
    name = os.fsdecode(b"\xff\xfe")
    (root / name).write_text("x")
    watch = watching(root)
    (root / name).unlink()
    assert [change.path for change in watch.changes(MemoryImages())[0]] == [name]


TREES = st.dictionaries(st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a"]), st.binary(max_size=3), max_size=5)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(before=TREES, after=TREES)
def test_before_plus_changes_is_after(tmp_path_factory: pytest.TempPathFactory, before: dict, after: dict) -> None:
    root = tmp_path_factory.mktemp("tree")
    write(root, before)
    watch = watching(root)
    for name in before.keys() - after.keys():
        (root / name).unlink()
    write(root, {name: data for name, data in after.items() if before.get(name) != data})
    changes, uncovered = watch.changes(images := MemoryImages())
    different = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    assert len(changes) + uncovered == len(different)
    for change in changes:
        assert change.path in different
        assert change.after == (sha256(after[change.path]) if change.path in after else None)
        assert (None if change.before is None else images.get(change.before)) == before.get(change.path)


def write(root: Path, tree: dict[str, bytes]) -> None:
    for name, data in tree.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
