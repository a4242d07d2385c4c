"""Undo gives back what was there, or touches nothing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanocode.agent.audit import AuditLog, verify
from nanocode.agent.files import ToolError, Workspace
from nanocode.agent.policy import Policy
from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits, Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.agent.undo import DiskImages
from nanocode.conversation import ToolCall

START = {"a.py": "x = 1\n", "sub/b.py": "y = 2\n"}
EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})
CREATE = ToolCall("Edit", {"file_path": "new/c.py", "new_string": "z\n"})
COMMAND = ToolCall("Bash", {"command": "make"})


class Doing:
    """A shell whose command is a function of the workspace."""

    def __init__(self, act: Callable[[Path], object]) -> None:
        self.act = act

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        self.act(workspace)
        return Completed("", 0)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    root = tmp_path / "work"
    for name, text in START.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


@pytest.fixture
def audit(tmp_path: Path) -> Iterator[AuditLog]:
    with AuditLog(tmp_path / "state" / "log.jsonl") as log:
        yield log


def after(workspace: Path, audit: AuditLog, act: Callable[[Path], object]) -> Toolbox:
    """A toolbox whose last call was that command."""
    toolbox = Toolbox(workspace, Policy("auto"), Doing(act), audit=audit)
    assert toolbox.execute(COMMAND).ok
    return toolbox


def files_of(workspace: Path) -> dict[str, str]:
    return {
        str(path.relative_to(workspace)): path.read_bytes().decode("utf-8", "replace")
        for path in sorted(workspace.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


def scramble(workspace: Path) -> None:
    (workspace / "a.py").write_text("scrambled")
    (workspace / "sub" / "b.py").unlink()
    (workspace / "sub" / "made.bin").write_bytes(b"\0\1")
    (workspace / "deep" / "er").mkdir(parents=True)
    (workspace / "deep" / "er" / "d").write_text("d")


def test_a_command_is_taken_back_whole(workspace: Path, audit: AuditLog) -> None:
    toolbox = after(workspace, audit, scramble)
    assert toolbox.undo() == "a.py, deep/er/d, sub/b.py, sub/made.bin"
    assert files_of(workspace) == START
    assert toolbox.undo() is None


def test_a_real_command_in_the_sandbox_is_taken_back(workspace: Path, audit: AuditLog) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), Sandbox(), audit=audit)
    assert toolbox.execute(
        ToolCall("Bash", {"command": "sed -i s/1/7/ a.py && mv sub/b.py c.py && touch -d @0 a.py"})
    ).ok
    assert files_of(workspace) == {"a.py": "x = 7\n", "c.py": "y = 2\n"}
    assert toolbox.undo() == "a.py, c.py, sub/b.py"
    assert files_of(workspace) == START


def test_effects_are_taken_back_one_by_one_the_last_first(workspace: Path, audit: AuditLog) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), Doing(scramble), audit=audit)
    for call in (EDIT, CREATE, COMMAND):
        assert toolbox.execute(call).ok
    seen = [files_of(workspace)]
    while toolbox.undo() is not None:
        seen.append(files_of(workspace))
    edited = START | {"a.py": "x = 2\n"}
    assert seen[1:] == [edited | {"new/c.py": "z\n"}, edited, START]


def test_a_later_process_takes_back_what_an_earlier_one_did(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as first:
        toolbox = Toolbox(workspace, Policy("auto"), Doing(scramble), audit=first)
        for call in (EDIT, CREATE, COMMAND):
            toolbox.execute(call)
        assert toolbox.undo() is not None
    with AuditLog(path) as second:
        toolbox = Toolbox(workspace, Policy("auto"), None, audit=second)
        assert [toolbox.undo(), toolbox.undo(), toolbox.undo()] == ["new/c.py", "a.py", None]
    assert files_of(workspace) == START
    undone = [entry for entry in verify(path).entries if entry["kind"] == "undo"]
    assert [entry["undone"] for entry in undone] == [2, 1, 0]


def test_another_workspace_is_left_alone(tmp_path: Path, workspace: Path) -> None:
    path, other = tmp_path / "log.jsonl", tmp_path / "other"
    other.mkdir()
    (other / "a.py").write_text("x = 2\n")
    with AuditLog(path) as log:
        Toolbox(workspace, Policy("auto"), None, audit=log).execute(EDIT)
    with AuditLog(path) as log:
        assert Toolbox(other, Policy("auto"), None, audit=log).undo() is None
    assert (other / "a.py").read_text() == "x = 2\n"


def test_an_edit_that_a_crash_interrupted_is_taken_back_if_it_happened(
    tmp_path: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as log, monkeypatch.context() as crash:
        crash.setattr("nanocode.agent.journal.Entry.end", lambda self, result: None)
        Toolbox(workspace, Policy("auto"), None, audit=log).execute(EDIT)
    assert [entry["kind"] for entry in verify(path).entries][-1] == "intent"
    with AuditLog(path) as log:
        assert Toolbox(workspace, Policy("auto"), None, audit=log).undo() == "a.py"
    assert files_of(workspace) == START


def test_an_undo_that_a_crash_interrupted_can_be_asked_for_again(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("auto"), Doing(scramble), audit=log)
        toolbox.execute(EDIT)
        toolbox.execute(COMMAND)
        (workspace / "sub" / "b.py").write_text(START["sub/b.py"])
        (workspace / "sub" / "made.bin").unlink()
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("auto"), None, audit=log)
        assert toolbox.undo() == "a.py, deep/er/d, sub/b.py, sub/made.bin"
        assert toolbox.undo() == "a.py"
    assert files_of(workspace) == START


@pytest.mark.parametrize("spoiled", ["a.py", "deep/er/d", "sub/made.bin"])
def test_nothing_is_touched_when_one_file_changed_since(workspace: Path, audit: AuditLog, spoiled: str) -> None:
    toolbox = after(workspace, audit, scramble)
    (workspace / spoiled).write_text("somebody's work")
    found = files_of(workspace)
    with pytest.raises(ToolError, match=f"{spoiled} changed since that command"):
        toolbox.undo()
    assert files_of(workspace) == found


def test_a_file_that_was_made_again_is_not_overwritten(workspace: Path, audit: AuditLog) -> None:
    toolbox = after(workspace, audit, scramble)
    (workspace / "sub" / "b.py").write_text("somebody's work")
    with pytest.raises(ToolError, match=r"sub/b\.py changed since"):
        toolbox.undo()


@pytest.mark.parametrize("instead", ["nothing", "a file", "a folder"])
def test_a_folder_that_a_command_removed_comes_back(workspace: Path, audit: AuditLog, instead: str) -> None:
    (workspace / "sub" / "deep").mkdir()
    (workspace / "sub" / "deep" / "c.py").write_text("z = 3\n")

    def act(root: Path) -> None:
        shutil.rmtree(root / "sub")
        if instead == "a file":
            (root / "sub").write_text("in the way")
        elif instead == "a folder":
            (root / "sub").mkdir()

    toolbox = Toolbox(workspace, Policy("auto"), Doing(act), audit=audit)
    assert toolbox.execute(EDIT).ok and toolbox.execute(COMMAND).ok
    assert toolbox.undo() is not None and toolbox.undo() == "a.py"
    assert files_of(workspace) == START | {"sub/deep/c.py": "z = 3\n"}


def test_a_folder_that_became_a_link_is_not_gone_through(tmp_path: Path, workspace: Path, audit: AuditLog) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()

    def act(root: Path) -> None:
        shutil.rmtree(root / "sub")
        (root / "sub").symlink_to(outside)
        (root / "a.py").write_text("gone")

    toolbox = after(workspace, audit, act)
    with pytest.raises(ToolError, match=r"sub/b\.py"):
        toolbox.undo()
    assert list(outside.iterdir()) == [] and (workspace / "a.py").read_text() == "gone"


def test_permissions_come_back(workspace: Path, audit: AuditLog) -> None:
    (workspace / "a.py").chmod(0o755)
    (workspace / "sub" / "b.py").chmod(0o700)

    def act(root: Path) -> None:
        (root / "a.py").chmod(0o600)
        (root / "sub" / "b.py").unlink()

    assert after(workspace, audit, act).undo() == "a.py, sub/b.py"
    modes = [(workspace / name).stat().st_mode & 0o777 for name in START]
    assert modes == [0o755, 0o700] and files_of(workspace) == START


def test_an_unchanged_file_with_a_new_time_is_no_change(workspace: Path, audit: AuditLog) -> None:
    assert after(workspace, audit, lambda root: (root / "a.py").touch()).undo() is None


def test_what_is_not_covered_is_told_and_does_not_hide_what_came_before(workspace: Path, audit: AuditLog) -> None:
    (workspace / "picture").write_bytes(b"\0" * 10)
    toolbox = Toolbox(
        workspace, Policy("auto"), Doing(lambda root: (root / "picture").write_bytes(b"\0gone")), audit=audit
    )
    toolbox.execute(EDIT)
    toolbox.execute(COMMAND)
    with pytest.raises(ToolError, match="1 file that was binary or too large to keep; undo again"):
        toolbox.undo()
    assert toolbox.undo() == "a.py" and toolbox.undo() is None


def test_a_restoration_says_what_it_leaves_out(workspace: Path, audit: AuditLog) -> None:
    (workspace / "picture").write_bytes(b"\0" * 10)

    def act(root: Path) -> None:
        (root / "picture").write_bytes(b"\0gone")
        (root / "a.py").write_text("gone")

    assert after(workspace, audit, act).undo() == "a.py (not 1 more: binary or too large to keep)"


def test_many_files_are_counted(workspace: Path, audit: AuditLog) -> None:
    toolbox = after(workspace, audit, lambda root: [(root / f"f{n}").write_text("x") for n in range(8)])
    assert toolbox.undo() == "f0, f1, f2, f3, f4 and 3 more"


@pytest.mark.parametrize("sources", [["picture"], [".git"]])
def test_the_only_copy_of_something_that_was_moved_is_never_removed(
    workspace: Path, audit: AuditLog, sources: list[str]
) -> None:
    (workspace / "picture").write_bytes(b"\0" * 10)
    (workspace / ".git").mkdir()
    (workspace / ".git" / "history").write_text("years of work")

    def act(root: Path) -> None:
        for name in sources:
            (root / name).rename(root / "moved")
        (root / "a.py").write_text("gone")

    toolbox = after(workspace, audit, act)
    assert toolbox.undo() is not None
    moved = workspace / "moved"
    assert (workspace / "a.py").read_text() == START["a.py"]
    assert (moved / "history").read_text() == "years of work" if moved.is_dir() else moved.read_bytes() == b"\0" * 10


def test_what_undo_removes_can_still_be_had(workspace: Path, audit: AuditLog) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
    toolbox.execute(CREATE)
    toolbox.undo()
    change = verify(audit.path).entries[-1]["files"][0]
    assert DiskImages(audit.path.parent / "before").get(change["after"]) == b"z\n"


def test_a_link_in_a_files_place_is_not_followed(tmp_path: Path, workspace: Path, audit: AuditLog) -> None:
    outside = tmp_path / "outside"
    outside.write_text("x = 2\n")
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
    toolbox.execute(EDIT)
    (workspace / "a.py").unlink()
    (workspace / "a.py").symlink_to(outside)
    with pytest.raises(ToolError, match="is a symbolic link"):
        toolbox.undo()
    assert outside.read_text() == "x = 2\n"


def test_a_refused_edit_is_no_effect(workspace: Path, audit: AuditLog) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
    assert not toolbox.execute(ToolCall("Edit", {"file_path": "a.py", "old_string": "no", "new_string": "2"})).ok
    assert toolbox.undo() is None


def test_an_edit_that_fails_at_the_last_moment_is_no_effect(
    workspace: Path, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Workspace, path: object, data: bytes, before: object) -> None:
        raise ToolError("no space left on device: a.py")

    toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
    monkeypatch.setattr(Workspace, "write", full)
    assert toolbox.execute(EDIT).text == "error: no space left on device: a.py"
    assert [entry["files"] for entry in verify(audit.path).entries if entry["kind"] == "call"] == [[]]
    assert toolbox.undo() is None


@pytest.mark.parametrize("damage", [b"other", None])
def test_a_pre_image_that_is_gone_or_damaged_is_not_restored(
    workspace: Path, audit: AuditLog, damage: bytes | None
) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=audit)
    toolbox.execute(EDIT)
    (image,) = (path for path in (audit.path.parent / "before").glob("*/*") if path.is_file())
    assert image.stat().st_mode & 0o777 == 0o600
    image.unlink()
    if damage is not None:
        image.write_bytes(damage)
    with pytest.raises(ToolError, match="earlier content"):
        toolbox.undo()
    assert (workspace / "a.py").read_text() == "x = 2\n"


def test_without_a_log_edits_can_be_undone_and_commands_leave_no_trace(workspace: Path) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), Doing(lambda root: (root / "sub" / "b.py").write_text("gone")))
    toolbox.execute(EDIT)
    toolbox.execute(COMMAND)
    assert toolbox.undo() == "a.py" and toolbox.undo() is None
    assert files_of(workspace) == START | {"sub/b.py": "gone"}


def test_a_torn_pre_image_is_written_again(workspace: Path, audit: AuditLog) -> None:
    """A crash can leave a name with half its content, and the next session wants to keep the same file."""
    images = DiskImages(audit.path.parent / "before")
    digest = images.put(b"x = 1\n")
    (image,) = images.folder.glob("*/*")
    image.write_bytes(b"x =")
    assert images.put(b"x = 1\n") == digest and images.get(digest) == b"x = 1\n"
