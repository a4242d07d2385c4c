"""Attacks on Read, Edit and Grep by the names and the kinds of what they are given."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
import socket
import threading
import time
import tracemalloc
from pathlib import Path, PurePosixPath

import pytest
from arena import SECRET, Arena, Attack

from nanocode.agent.files import MAX_FILE_BYTES, ToolError

LINK = "is a symbolic link"
OUTSIDE = "outside the workspace"
MISSING = "file not found"


def link(name: str, target: str) -> object:
    return lambda arena: (arena.root / name).symlink_to(target.format(outside=arena.outside))


PATHS = [
    Attack("prefix sibling", "CVE-2025-54794: paths compared as strings", "{evil}/secret.txt", OUTSIDE),
    Attack("relative sibling", "GHSA-w5fx-fh39-j5rw: the same by ..", "../repo-evil/secret.txt", OUTSIDE),
    Attack("sibling of the mount", "the same against /project", "/project-evil/secret.txt", OUTSIDE),
    Attack("parent", "CWE-22: the plain traversal", "../outside/secret.txt", OUTSIDE),
    Attack("hidden parent", "CWE-22: .. after a folder that does not exist", "a/../../outside/secret.txt", OUTSIDE),
    Attack("parent of the mount", "CWE-22: .. after the mapped prefix", "/project/../etc/passwd", OUTSIDE),
    Attack("absolute", "CWE-36", "/etc/passwd", OUTSIDE),
    Attack("two slashes", "CWE-50: // is a root of its own to some libraries", "//etc/passwd", OUTSIDE),
    Attack("root by proc", "modelcontextprotocol/servers#1845: magic links", "/proc/self/root/etc/passwd", OUTSIDE),
    Attack("environment by proc", "theft of keys without a shell", "/proc/self/environ", OUTSIDE),
    Attack("memory by proc", "theft of keys from memory", "/proc/self/mem", OUTSIDE),
    Attack("working folder by proc", "CVE-2024-21626: a folder left open", "/proc/self/cwd/../outside/x", OUTSIDE),
    Attack("endless device", "CWE-66: a device as a file", "/dev/zero", OUTSIDE),
    Attack("home sign", "~ expanded by a helpful library", "~/.ssh/id_rsa", MISSING),
    Attack("variable", "CVE-2026-22708: variables expanded after the check", "$HOME/.bashrc", MISSING),
    Attack("file url", "a path taken for an address", "file:///etc/passwd", MISSING),
    Attack("percent signs", "CWE-177: decoded after the check", "%2e%2e/outside/secret.txt", MISSING),
    Attack("backslashes", "CWE-29: separators of another system", "..\\outside\\secret.txt", MISSING),
    Attack("full-width dots", "CWE-176: normalised after the check", "\uff0e\uff0e/outside/secret.txt", MISSING),
    Attack("zero byte", "CWE-158: the path ends for C and goes on for Python", "a.py\0/../../x", "zero byte"),
    Attack("metacharacters", "claudette#25: checks stop at the first *", "*/../../outside/secret.txt", OUTSIDE),
    Attack(
        "link to file",
        "CVE-2026-25724: deny rules not applied through links",
        "l",
        LINK,
        link("l", "{outside}/secret.txt"),
    ),
    Attack("link to folder", "anthropics/claude-code#77287", "l/secret.txt", "not a directory", link("l", "{outside}")),
    Attack("relative link", "CWE-59", "l", LINK, link("l", "../outside/secret.txt")),
    Attack(
        "link to the root",
        "a magic link by way of a plain one",
        "l/etc/passwd",
        "not a directory",
        link("l", "/proc/self/root"),
    ),
    Attack("link to an open file", "a magic link that is no path at all", "l", LINK, link("l", "/proc/self/fd/0")),
    Attack("link to itself", "CWE-664: resolved for ever", "l", LINK, link("l", "l")),
]


@pytest.mark.parametrize("attack", PATHS, ids=str)
def test_a_path_that_leads_out_is_refused_by_every_tool(arena: Arena, attack: Attack) -> None:
    attack.prepare(arena)
    path = attack.attempt.format(outside=arena.outside, evil=arena.evil)
    for answer in (
        arena.use("Read", file_path=path),
        arena.use("Edit", file_path=path, old_string=SECRET, new_string="taken"),
        arena.use("Grep", pattern=".", path=path),
    ):
        assert answer.startswith("error: ") and attack.seen in answer and SECRET not in answer


def test_a_chain_of_links(arena: Arena) -> None:
    """Each link looks harmless by itself; CWE-59."""
    (arena.root / "one").symlink_to("two")
    (arena.root / "two").symlink_to("three")
    (arena.root / "three").symlink_to(arena.outside)
    for path in ("one", "one/secret.txt", "two/secret.txt", "three/secret.txt"):
        assert SECRET not in arena.use("Read", file_path=path) + arena.use("Grep", pattern="SECRET", path=path)
    assert arena.use("Grep", pattern="SECRET") == "no matches"


def test_a_new_file_below_a_linked_parent(arena: Arena) -> None:
    """DesktopCommanderMCP#420: the target does not exist yet, so a check by realpath has nothing to resolve."""
    (arena.root / "l").symlink_to(arena.outside)
    (arena.root / "dangling").symlink_to(arena.outside / "new.txt")
    for path in ("l/new.txt", "l/deep/new.txt", "dangling"):
        assert arena.use("Edit", file_path=path, new_string="x").startswith("error: ")


@pytest.mark.parametrize("nameless", [True, False])
def test_the_name_of_the_temporary_file_cannot_be_guessed(
    arena: Arena, monkeypatch: pytest.MonkeyPatch, nameless: bool
) -> None:
    """CWE-377: a link planted under the name that an atomic write uses first. Linking never goes through one."""
    names: list[object] = []
    real_open, real_link = os.open, os.link

    def watching(path: object, flags: int, *rest: object, **named: object) -> int:
        if flags & os.O_CREAT:
            names.append(path)
            assert flags & os.O_EXCL and flags & os.O_NOFOLLOW
        return real_open(path, flags, *rest, **named)  # type: ignore[arg-type]

    def linking(source: str, name: str, **named: object) -> None:
        names.append(name)
        real_link(source, name, **named)  # type: ignore[arg-type]

    if not nameless:
        monkeypatch.setattr("nanocode.agent.replacing._nameless", lambda folder, mode: None)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", watching)
        patch.setattr(os, "link", linking)
        for value in range(2, 6):
            arena.use("Edit", file_path="a.py", old_string=f"x = {value - 1}", new_string=f"x = {value}")
    assert len(set(names)) == len(names) == 4 and all(len(str(name)) > 16 for name in names)


def test_an_edit_of_a_hard_link_leaves_the_other_name_alone(arena: Arena) -> None:
    """CWE-62: a file of the workspace that is also a file elsewhere, written in place."""
    (arena.root / "both").hardlink_to(arena.outside / "secret.txt")
    assert arena.use("Edit", file_path="both", old_string="PLANTED", new_string="taken") == "edited both, line 1"
    assert (arena.outside / "secret.txt").read_text() == SECRET


def test_an_edit_of_a_program_that_runs_as_its_owner(arena: Arena) -> None:
    """CWE-732: new content under a set-user-id bit runs with the owner's rights."""
    program = arena.root / "tool.sh"
    program.write_text("echo safe\n")
    program.chmod(0o6755)
    arena.use("Edit", file_path="tool.sh", old_string="safe", new_string="evil")
    assert program.stat().st_mode & 0o7777 == 0o755


def test_a_pipe_a_socket_and_a_device(arena: Arena) -> None:
    """CWE-66: a read that never comes back."""
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
    names = ["pipe", "socket"]
    try:
        os.mknod("device", 0o020666, os.makedev(1, 5))
        names.append("device")
    except PermissionError:
        assert os.geteuid() != 0
    started = time.monotonic()
    for name in names:
        assert arena.use("Read", file_path=name) == f"error: not a regular file: {name}"
        assert arena.use("Edit", file_path=name, old_string="x", new_string="y") == f"error: not a regular file: {name}"
        assert arena.use("Grep", pattern="x", path=name) == f"error: not a regular file: {name}"
    assert arena.use("Grep", pattern="x = ") == "a.py:1:x = 1" and time.monotonic() - started < 20


def test_a_file_of_two_gigabytes(arena: Arena) -> None:
    """CWE-770: read whole, it takes the memory of the machine."""
    with (arena.root / "big").open("wb") as file:
        file.truncate(2 << 30)
    tracemalloc.start()
    started = time.monotonic()
    message = f"error: file too large: big ({2 << 30} bytes, at most {MAX_FILE_BYTES})"
    assert arena.use("Read", file_path="big") == message
    assert arena.use("Edit", file_path="big", old_string="x", new_string="y") == message
    assert arena.use("Grep", pattern="x", path="big") == message
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000 and time.monotonic() - started < 20


def test_a_name_that_is_not_text(arena: Arena) -> None:
    """CWE-172: bytes that are no UTF-8 break whoever prints them."""
    (arena.root / os.fsdecode(b"\xff\xfe.py")).write_text("x = 1\n")
    answer = arena.use("Grep", pattern="x = 1")
    assert answer == "a.py:1:x = 1\n\ufffd\ufffd.py:1:x = 1"
    assert arena.use("Read", file_path="\udcff\udcfe.py").endswith("x = 1")


def test_a_workspace_that_cannot_be_written(arena: Arena) -> None:
    """A refusal by the system is a result, and no temporary file is left behind."""

    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    with pytest.MonkeyPatch.context() as patch:
        # Folder modes do not hold root back, so the system's answer is given in its place.
        patch.setattr(os, "rename", refuse)
        answer = arena.use("Edit", file_path="a.py", old_string="1", new_string="2")
    assert answer == "error: read-only file system: a.py"
    assert [path.name for path in arena.root.iterdir()] == ["a.py"] and (arena.root / "a.py").read_text() == "x = 1\n"


def test_a_folder_is_swapped_for_a_link_while_files_are_written(arena: Arena) -> None:
    """CWE-367: the classic race; what is checked is a folder, what is written through is a link."""
    folder, trap = arena.root / "d", arena.root / "trap"
    folder.mkdir()
    (folder / "f").write_text("inside")
    (arena.outside / "f").write_text(SECRET)
    trap.symlink_to(arena.outside)
    library, done, swaps = ctypes.CDLL(None), threading.Event(), itertools.count()

    def swap() -> None:
        while not done.is_set():
            here, exchange = -100, 2
            assert library.renameat2(here, bytes(folder), here, bytes(trap), exchange) == 0
            next(swaps)

    attacker = threading.Thread(target=swap)
    attacker.start()
    seen = set()
    try:
        for number in range(400):
            seen.add(arena.use("Read", file_path="d/f"))
            arena.use("Edit", file_path=f"d/new{number}", new_string="x\n")
            seen.add(arena.use("Grep", pattern="SECRET", path="d"))
    finally:
        done.set()
        attacker.join()
    assert next(swaps) > 400 and len(seen) > 1, "both states were met"
    assert not any(SECRET in text for text in seen)
    (arena.outside / "f").unlink()


def test_a_file_is_swapped_for_a_pipe_after_it_was_looked_at(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """CWE-367: an open that waits for a writer who never comes."""
    real_stat, target = os.stat, arena.root / "a.py"
    regular = target.stat()
    target.unlink()
    os.mkfifo(target)

    def stale(path: object, **named: object) -> os.stat_result:
        return regular if path == "a.py" else real_stat(path, **named)  # type: ignore[arg-type,call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(ToolError, match="not a regular file"):
        arena.toolbox._files.read(PurePosixPath("a.py"))


def test_a_folder_of_very_many_names(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """CWE-770: the names alone fill memory, or the search goes on for minutes."""
    monkeypatch.setattr("nanocode.agent.files.MAX_NAMES", 200)
    (arena.root / "many").mkdir()
    for number in range(300):
        (arena.root / "many" / str(number)).symlink_to("x")
    assert arena.use("Grep", pattern="x", path="many") == "... stopped: too many files, give a path"
    assert arena.use("Grep", pattern="x = ") == "a.py:1:x = 1\n... stopped: too many files, give a path"


def test_links_by_the_thousand_are_counted_though_none_is_read(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """CWE-770: a budget of files that are read says nothing of names that are looked at."""
    monkeypatch.setattr("nanocode.agent.files.MAX_LOOKS", 100)
    for number in range(30):
        (arena.root / f"d{number}").mkdir()
        for name in "abcd":
            (arena.root / f"d{number}" / name).symlink_to("x")
    assert arena.use("Grep", pattern="x").endswith("... stopped: too many files, give a path")


def test_a_link_in_place_of_the_workspace_after_it_was_opened(arena: Arena, tmp_path: Path) -> None:
    """CWE-367: the workspace itself is swapped; its own name is not followed either."""
    arena.root.rename(tmp_path / "moved")
    arena.root.symlink_to(arena.outside)
    try:
        assert SECRET not in arena.use("Read", file_path="secret.txt")
    finally:
        arena.root.unlink()
        (tmp_path / "moved").rename(arena.root)
