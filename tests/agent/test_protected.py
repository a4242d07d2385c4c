"""Configuration that runs outside the sandbox later cannot be written from inside, whether it exists yet or not."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from nanocode.agent.protected import ProtectedPaths, is_protected
from nanocode.agent.sandbox import Limits, Sandbox


@pytest.mark.parametrize("path", [".git", ".git/hooks/x", "sub/.git/config", ".GIT/config", "SOUL.md", ".nanocode/x"])
def test_protected(path: str) -> None:
    assert is_protected(path)


@pytest.mark.parametrize("path", ["git", ".gitignore", "a.py", "SOUL.md.txt", ".github/x", "nanocode/x"])
def test_not_protected(path: str) -> None:
    assert not is_protected(path)


def test_existing_ones_are_read_only_inside(tmp_path: Path) -> None:
    (tmp_path / ".git" / "hooks").mkdir(parents=True)
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    (tmp_path / "SOUL.md").write_text("kind")
    command = (
        "echo x > .git/hooks/pre-commit; echo x > sub/.git/config; echo x > SOUL.md; rm -rf .git SOUL.md; mv .git g"
    )
    completed = Sandbox().run(command, tmp_path, Limits())
    assert completed.output.count("Read-only file system") >= 3 and completed.notes == ()
    assert (tmp_path / "SOUL.md").read_text() == "kind"
    assert list((tmp_path / ".git" / "hooks").iterdir()) == list((tmp_path / "sub" / ".git").iterdir()) == []


def test_new_ones_are_moved_aside_and_named(tmp_path: Path) -> None:
    (tmp_path / "precious.md").write_text("text")
    command = "mkdir -p .git/hooks a; echo x > .git/hooks/pre-commit; mkdir a/.nanocode; mv precious.md SOUL.md"
    completed = Sandbox().run(command, tmp_path, Limits())
    assert completed.notes == (
        "renamed .git to .git.blocked: it is protected",
        "renamed SOUL.md to SOUL.md.blocked: it is protected",
        "renamed a/.nanocode to .nanocode.blocked: it is protected",
    )
    assert (tmp_path / "SOUL.md.blocked").read_text() == "text", "moved, not deleted"
    assert not any((tmp_path / name).exists() for name in (".git", "SOUL.md", "a/.nanocode"))


def test_a_second_one_does_not_overwrite_the_first(tmp_path: Path) -> None:
    for number in (1, 2):
        Sandbox().run(f"echo {number} > SOUL.md", tmp_path, Limits())
    contents = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert contents == {"SOUL.md.blocked": "1\n", "SOUL.md.blocked-2": "2\n"}


def test_moving_a_folder_that_holds_a_repository_is_no_new_repository(tmp_path: Path) -> None:
    (tmp_path / "sub" / ".git").mkdir(parents=True)
    completed = Sandbox().run("mv sub other", tmp_path, Limits())
    assert completed.exit_code == 0 and completed.notes == () and (tmp_path / "other" / ".git").is_dir()


def test_a_link_to_a_folder_of_the_workspace_protects_that_folder(tmp_path: Path) -> None:
    (tmp_path / "real-git" / "hooks").mkdir(parents=True)
    (tmp_path / ".git").symlink_to("real-git")
    completed = Sandbox().run("echo x > real-git/hooks/pre-commit; echo x > .git/config", tmp_path, Limits())
    assert completed.output.count("Read-only file system") == 2


def test_a_link_that_is_replaced_is_noticed(tmp_path: Path) -> None:
    (tmp_path / ".git").symlink_to("/somewhere/else")
    completed = Sandbox().run("rm .git; mkdir -p .git/hooks", tmp_path, Limits())
    assert completed.notes == ("renamed .git to .git.blocked: it is protected",)


def test_a_reused_inode_number_does_not_hide_a_newcomer(tmp_path: Path) -> None:
    # File systems hand the number of a deleted link to the next folder made; seen on ext4.
    (tmp_path / ".git").mkdir()
    [now] = ProtectedPaths.find(tmp_path).identities.values()
    before = ProtectedPaths({".git": replace(now, kind=stat.S_IFLNK, link_target="/somewhere/else")})
    assert before.undo_new(tmp_path) == ("renamed .git to .git.blocked: it is protected",)


def test_a_new_link_planted_as_configuration_is_moved_without_being_followed(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "outside").mkdir()
    Sandbox().run("ln -s ../outside .git", tmp_path / "work", Limits())
    assert (tmp_path / "work" / ".git.blocked").is_symlink() and (tmp_path / "outside").is_dir()
