"""Nothing reaches outside the workspace, whatever stands in it or in the path."""

import os
import socket
import threading
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent.files import MAX_FILE_BYTES, ToolError, Workspace

SECRET = b"SECRET"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "secret.txt").write_bytes(SECRET)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    return folder


def read(root: Path, path: str) -> bytes:
    workspace = Workspace.at(root)
    return workspace.read(workspace.relative(path)).data


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_absolute_paths_inside_are_mapped_and_so_are_those_of_the_sandbox(root: Path) -> None:
    (root / "a.py").write_bytes(b"a")
    for path in ("a.py", "./a.py", "x/../a.py", str(root / "a.py"), "/project/a.py", "/project/./a.py"):
        assert read(root, path) == b"a", path


@pytest.mark.parametrize(
    "path",
    ["..", "../outside/secret.txt", "a/../../outside/secret.txt", "/etc/passwd", "/proc/self/root/etc/passwd", "/"],
)
def test_paths_that_point_outside_are_refused(root: Path, outside: Path, path: str) -> None:
    with pytest.raises(ToolError, match="outside the workspace"):
        read(root, path)


def test_a_sibling_that_shares_the_prefix_is_outside(root: Path) -> None:
    # A comparison of strings takes /repo-evil for a part of /repo.
    sibling = root.with_name("repo-evil")
    sibling.mkdir()
    (sibling / "secret.txt").write_bytes(SECRET)
    for path in (str(sibling / "secret.txt"), "../repo-evil/secret.txt", "/project-evil/secret.txt"):
        with pytest.raises(ToolError, match="outside the workspace"):
            read(root, path)


def test_links_are_not_followed_wherever_they_stand(root: Path, outside: Path) -> None:
    (root / "file").symlink_to(outside / "secret.txt")
    (root / "folder").symlink_to(outside)
    (root / "chain").symlink_to("folder")
    (root / "relative").symlink_to("../outside/secret.txt")
    (root / "proc").symlink_to("/proc/self/root")
    for path in (
        "file",
        "folder/secret.txt",
        "chain/secret.txt",
        "relative",
        f"proc{outside}/secret.txt",
        "proc/etc/passwd",
    ):
        with pytest.raises(ToolError, match=r"is a symbolic link|not a directory"):
            read(root, path)


def test_a_new_file_below_a_linked_parent_is_not_created(root: Path, outside: Path) -> None:
    # The target does not exist, so a check by realpath has nothing to resolve and lets it pass.
    (root / "link").symlink_to(outside)
    workspace = Workspace.at(root)
    for path in ("link/new.txt", "link/sub/new.txt"):
        with pytest.raises(ToolError):
            workspace.write(PurePosixPath(path), b"x", before=None)
    assert names(outside) == ["secret.txt"]


def test_a_dangling_link_is_not_written_through(root: Path, outside: Path) -> None:
    (root / "link.txt").symlink_to(outside / "new.txt")
    workspace = Workspace.at(root)
    with pytest.raises(ToolError, match="exists"):
        workspace.write(PurePosixPath("link.txt"), b"x", before=None)
    assert not (outside / "new.txt").exists()


def test_pipes_sockets_and_devices_are_refused_without_hanging(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(root / "pipe")
    # The address is limited to about 100 bytes, so it is bound by its short name.
    monkeypatch.chdir(root)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    for name in ("pipe", "socket"):
        with pytest.raises(ToolError, match="not a regular file"):
            read(root, name)


def test_a_folder_swapped_for_a_link_during_reads_leaks_nothing(root: Path, outside: Path) -> None:
    # The attack between check and open: what is checked is a folder, what is opened a link.
    (outside / "f").write_bytes(SECRET)
    real, link, name = root / "real", root / "link", root / "d"
    real.mkdir()
    (real / "f").write_bytes(b"inside")
    link.symlink_to(outside)
    done = threading.Event()

    def swap() -> None:
        while not done.is_set():
            real.rename(name)
            name.rename(real)
            link.rename(name)
            name.rename(link)

    attacker = threading.Thread(target=swap)
    attacker.start()
    try:
        seen = set()
        for _ in range(2_000):
            try:
                seen.add(read(root, "d/f"))
            except ToolError:
                continue
    finally:
        done.set()
        attacker.join()
    assert SECRET not in seen


def test_a_file_over_the_limit_is_refused_without_reading_it_whole(root: Path) -> None:
    with (root / "big").open("wb") as file:
        file.truncate(10_000_000_000)
    with pytest.raises(ToolError, match=f"file too large: big .10000000000 bytes, at most {MAX_FILE_BYTES}"):
        read(root, "big")


def test_writing_keeps_mode_and_leaves_no_temporary_file(root: Path) -> None:
    file = root / "run.sh"
    file.write_bytes(b"old")
    file.chmod(0o750)
    workspace = Workspace.at(root)
    workspace.write(PurePosixPath("run.sh"), b"new", workspace.read(PurePosixPath("run.sh")))
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"new", 0o750)
    assert names(root) == ["run.sh"]


def test_a_file_that_changed_since_it_was_read_is_not_overwritten(root: Path) -> None:
    (root / "a").write_bytes(b"old")
    workspace = Workspace.at(root)
    before = workspace.read(PurePosixPath("a"))
    (root / "a").write_bytes(b"somebody else's")
    with pytest.raises(ToolError, match="changed since it was read"):
        workspace.write(PurePosixPath("a"), b"mine", before)
    assert (root / "a").read_bytes() == b"somebody else's"
    assert names(root) == ["a"]


def test_the_walk_skips_links_special_files_and_named_folders(root: Path, outside: Path) -> None:
    (root / "b.py").write_bytes(b"b")
    (root / "a").mkdir()
    (root / "a" / "c.py").write_bytes(b"c")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_bytes(b"x")
    (root / "loop").symlink_to(".")
    (root / "out").symlink_to(outside)
    os.mkfifo(root / "pipe")
    found = list(Workspace.at(root).files(PurePosixPath("."), frozenset({".git"})))
    assert found == [("a/c.py", b"c"), ("b.py", b"b")]


def test_a_name_that_is_not_utf8_becomes_valid_text(root: Path) -> None:
    Path(os.fsdecode(os.fsencode(root) + b"/\xff.txt")).write_bytes(b"x")
    [(name, _)] = Workspace.at(root).files(PurePosixPath("."), frozenset())
    assert name.encode() == "\ufffd.txt".encode()


def test_a_very_deep_folder_does_not_break_the_walk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (root / "top.py").write_bytes(b"x")
    monkeypatch.chdir(root)
    depth = 1_500
    for _ in range(depth):
        Path("d").mkdir()
        os.chdir("d")
    found = [name for name, _ in Workspace.at(root).files(PurePosixPath("."), frozenset())]
    for _ in range(depth):  # pytest's own clean-up recurses, and would fail on it in a later session
        os.chdir("..")
        Path("d").rmdir()
    assert found == ["top.py"]


@given(st.text(max_size=40))
def test_any_path_is_inside_or_refused(path: str) -> None:
    workspace = Workspace(Path("/some/repo"), Path("/some/repo"))
    try:
        relative = workspace.relative(path)
    except ToolError:
        return
    assert not relative.is_absolute() and ".." not in relative.parts
