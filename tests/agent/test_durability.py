"""What is on disk before what: no more waiting than the promise of the log and of undo needs, and no less."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanocode.agent.audit import AuditLog
from nanocode.agent.policy import Policy
from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

READ = ToolCall("Read", {"file_path": "a.py"})
EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"})
BACK = ToolCall("Edit", {"file_path": "a.py", "old_string": "2", "new_string": "1"})
CREATE = ToolCall("Edit", {"file_path": "b.py", "new_string": "y\n"})
BASH = ToolCall("Bash", {"command": "make"})


@dataclass
class Doing:
    """A shell whose command writes a file, or nothing."""

    writes: bool = True

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        if self.writes:
            (workspace / "a.py").write_text("made\n")
        return Completed("", 0)


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was waited for, in order: ``image``, ``log`` or ``file``."""
    told: list[str] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        told.append("image" if "/before/" in path else "log" if path.endswith(".jsonl") else "file")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    return told


@pytest.fixture
def toolbox(tmp_path: Path, waits: list[str]) -> Iterator[Toolbox]:
    work = tmp_path / "work"
    work.mkdir()
    (work / "a.py").write_text("x = 1\n")
    with AuditLog(tmp_path / "logs" / "one.jsonl") as audit:
        made = Toolbox(work, Policy("auto"), Doing(), audit=audit)
        waits.clear()
        yield made


def test_an_edit_waits_for_its_pre_image_then_its_intent_then_its_file(toolbox: Toolbox, waits: list[str]) -> None:
    assert toolbox.execute(READ).ok and waits == []
    assert toolbox.execute(EDIT).ok and waits == ["image", "log", "file"]
    waits.clear()
    assert toolbox.execute(BACK).ok and waits == ["image", "log", "file"]
    waits.clear()
    assert toolbox.execute(EDIT).ok and waits == ["log", "file"], "this pre-image is there"
    waits.clear()
    assert toolbox.execute(CREATE).ok and waits == ["log", "file"], "there is nothing to keep"


def test_a_command_waits_for_its_intent_and_when_it_changed_something_for_what_that_was(
    toolbox: Toolbox, waits: list[str]
) -> None:
    assert toolbox.execute(BASH).ok and waits == ["log", "image", "log"]
    waits.clear()
    toolbox.sandbox = Doing(writes=False)
    assert toolbox.execute(BASH).ok and waits == ["log"]


def test_what_does_not_happen_is_not_waited_for(toolbox: Toolbox, waits: list[str]) -> None:
    missing = ToolCall("Edit", {"file_path": "a.py", "old_string": "none", "new_string": "2"})
    assert not toolbox.execute(missing).ok and not toolbox.execute(ToolCall("Write")).ok
    toolbox.policy = Policy("plan")
    assert not toolbox.execute(EDIT).ok
    assert waits == []


def test_everything_is_on_disk_when_the_log_is_closed(toolbox: Toolbox, waits: list[str]) -> None:
    toolbox.execute(READ)
    assert toolbox.audit is not None
    toolbox.audit.close()
    assert waits == ["log"]
