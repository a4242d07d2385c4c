"""A file is in its place whole or not at all, and a killed writer leaves nothing that stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from nanocode.agent import replacing
from nanocode.agent.files import ToolError, Workspace
from nanocode.agent.replacing import STALE_SECONDS, new_file, remove_stale, temporary_name

REPOSITORY = Path(__file__).parents[2]
# Writes to a.py and is killed where the line of the test says.
KILLED = """
import os, signal, sys
from pathlib import Path, PurePosixPath
from nanocode.agent import replacing
from nanocode.agent.files import Workspace

if "without" in sys.argv:
    replacing._nameless = lambda folder, mode: None
workspace, path = Workspace.at(Path(sys.argv[1])), PurePosixPath("a.py")
setattr(os, sys.argv[2], lambda *arguments, **keywords: os.kill(os.getpid(), signal.SIGKILL))
workspace.write(path, b"new" * 1000, workspace.read(path))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield descriptor
    os.close(descriptor)


@pytest.fixture(params=["without a name", "with one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of making a file, whatever this system has."""
    if request.param == "with one":
        monkeypatch.setattr(replacing, "_nameless", lambda folder, mode: None)
    return str(request.param)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_in(root: Path, call: str, *arguments: str) -> None:
    command = [sys.executable, "-c", KILLED, str(root), call, *arguments]
    assert subprocess.run(command, cwd=REPOSITORY, check=False).returncode == -signal.SIGKILL


@pytest.mark.usefixtures("way")
def test_a_file_is_created_or_replaced(folder: int, tmp_path: Path) -> None:
    for method, content in (("create", b"one"), ("replace", b"two")):
        with new_file(folder, 0o640) as made:
            os.write(made.descriptor, content)
            assert not (tmp_path / "f").exists() or (tmp_path / "f").read_bytes() == b"one"
            getattr(made, method)("f")
        assert (tmp_path / "f").read_bytes() == content and names(tmp_path) == ["f"]


@pytest.mark.usefixtures("way")
def test_a_place_that_is_taken_meanwhile_is_not_taken_twice(folder: int, tmp_path: Path) -> None:
    """A look before it is no answer: somebody can make the file in between."""
    (tmp_path / "f").write_text("mine")
    with pytest.raises(FileExistsError), new_file(folder, 0o640) as made:
        made.create("f")
    assert (tmp_path / "f").read_text() == "mine" and names(tmp_path) == ["f"]


@pytest.mark.usefixtures("way")
def test_a_file_made_between_look_and_write_is_a_clear_refusal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = Workspace.at(tmp_path)
    (tmp_path / "f").write_text("mine")
    monkeypatch.setattr("nanocode.agent.files._refuse_changed", lambda *_: None)
    with pytest.raises(ToolError, match="f exists; give old_string to change it"):
        workspace.write(PurePosixPath("f"), b"new", before=None)
    assert (tmp_path / "f").read_text() == "mine" and names(tmp_path) == ["f"]


@pytest.mark.usefixtures("way")
def test_what_is_given_up_is_gone(folder: int, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_file(folder, 0o640) as made:
        os.write(made.descriptor, b"half")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@pytest.mark.parametrize("call", ["fsync", "link"])
def test_a_writer_that_is_killed_leaves_the_old_file_and_nothing_else(tmp_path: Path, call: str) -> None:
    (tmp_path / "a.py").write_text("old")
    killed_in(tmp_path, call)
    assert names(tmp_path) == ["a.py"] and (tmp_path / "a.py").read_text() == "old"


@pytest.mark.parametrize("arguments", [["rename"], ["fsync", "without"]])
def test_what_it_leaves_where_it_needs_a_name_is_removed_later_by_the_next_writer(
    tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "a.py").write_text("old")
    killed_in(tmp_path, *arguments)
    (left,) = set(names(tmp_path)) - {"a.py"}
    assert (tmp_path / "a.py").read_text() == "old" and replacing.TEMPORARY.fullmatch(left)
    Workspace.at(tmp_path).write(PurePosixPath("b"), b"x", before=None)
    assert left in names(tmp_path), "its writer may be at it still"
    long_ago = time.time() - 2 * STALE_SECONDS
    os.utime(tmp_path / left, (long_ago, long_ago))
    Workspace.at(tmp_path).write(PurePosixPath("c"), b"x", before=None)
    assert names(tmp_path) == ["a.py", "b", "c"]


def test_only_old_files_of_our_own_name_are_removed(folder: int, tmp_path: Path) -> None:
    stale, link, hidden, fresh = (temporary_name() for _ in range(4))
    others = ["a.tmp", ".nanocode-0123.tmp", f"{stale}x", f"x{stale}", stale.upper()]
    for name in [stale, *others]:
        (tmp_path / name).write_text("x")
    (tmp_path / link).symlink_to("a.tmp")
    (tmp_path / hidden).mkdir()
    (tmp_path / fresh).write_text("x")
    now = (tmp_path / fresh).stat().st_mtime + STALE_SECONDS / 2
    for name in [stale, *others, hidden]:
        os.utime(tmp_path / name, (0, 0))
    remove_stale(folder, now)
    assert set(names(tmp_path)) == {*others, link, hidden, fresh}
