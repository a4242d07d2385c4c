"""`nanocode teacher` until it listens; what it serves is tested with the server."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from nanocode.cli import teacher
from nanocode.constitution.soul import SoulError


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """(behaviour, sockets) of each server that would have run."""
    found: list[Any] = []

    def make_server(app: Any, behaviour: Any) -> Any:
        return SimpleNamespace(run=lambda sockets: found.append((behaviour, sockets)))

    monkeypatch.setattr(teacher, "make_server", make_server)
    return found


def call(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(teacher.teacher)
    return CliRunner().invoke(app, ["--port", "0", *arguments])


def test_the_project_s_constitution_is_found_from_any_folder(
    started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call()
    assert result.exit_code == 0, result.output
    ((behaviour, sockets),) = started
    assert behaviour is None
    assert len(sockets) == 1
    assert "configs/SOUL.md" in result.output


def test_a_constitution_that_is_not_there_and_a_fault_that_there_is_not_are_named(started: list[Any]) -> None:
    assert isinstance(call("--soul", "none.md").exception, SoulError)
    assert "there is no fault 'torm'" in call("--faults", "429,torm").output
    assert started == []


def test_limits_and_faults_reach_the_server(started: list[Any]) -> None:
    assert call("--fault-rate", "0.5", "--faults", "429, torn", "--requests-per-second", "3").exit_code == 0
    ((behaviour, _),) = started
    assert (behaviour.fault_rate, behaviour.faults, behaviour.requests_per_second) == (0.5, ("429", "torn"), 3.0)
