"""`nanocode audit` lists the calls of a log that holds together, and names the line where one does not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from nanocode.agent.audit import AuditError, AuditLog
from nanocode.agent.policy import Policy
from nanocode.agent.tools import Toolbox
from nanocode.cli import app
from nanocode.cli.context import Settings
from nanocode.conversation import ToolCall


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Of a session that read, edited, was refused and took the edit back."""
    workspace, path = tmp_path / "workspace", tmp_path / "state" / "session.jsonl"
    workspace.mkdir()
    (workspace / "a.py").write_text("x = 1\n")
    path.parent.mkdir()
    with AuditLog(path, clock=lambda: 0.0) as audit:
        toolbox = Toolbox(workspace, Policy("auto-edit"), None, audit=audit)
        toolbox.execute(ToolCall("Read", {"file_path": "a.py"}))
        toolbox.execute(ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "\x1b[31m2"}))
        toolbox.execute(ToolCall("Bash", {"command": "true"}))
        toolbox.undo()
    return path


def audit(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, ["audit", *arguments], obj=Settings())


def test_calls_are_listed_with_who_decided_and_what_was_taken_back(log: Path) -> None:
    done = audit(str(log))
    assert done.exit_code == 0
    rows = [line.split() for line in done.output.splitlines()[1:-1]]
    assert [row[2] for row in rows] == ["Read", "Edit", "Bash", "undo"]
    assert [row[-1] for row in rows] == ["yes", "yes", "no", "yes"]
    assert "nobody to ask" in done.output
    assert done.output.splitlines()[-1].endswith("lines, none altered")


def test_what_a_model_wrote_cannot_steer_the_terminal(log: Path) -> None:
    assert "\x1b" not in audit(str(log)).output


def test_json_gives_the_verified_lines(log: Path) -> None:
    entries = [json.loads(line) for line in audit(str(log), "--json").output.splitlines()]
    assert [json.loads(line) for line in log.read_text().splitlines()] == entries


def test_an_altered_line_is_named_and_nothing_is_listed(log: Path) -> None:
    log.write_text(log.read_text().replace('"a.py"', '"b.py"', 1))
    done = audit(str(log))
    assert isinstance(done.exception, AuditError) and done.output == ""
    assert "was altered" in str(done.exception)


def test_no_log_is_one_line(tmp_path: Path) -> None:
    assert "cannot be read" in str(audit(str(tmp_path / "none.jsonl")).exception)
