"""`nanocode agent` from outside: exit codes, JSON, pipes, and what it refuses."""

import json
import sys
import types
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from nanocode.agent.sandbox import SandboxUnavailable
from nanocode.cli import agent as command
from nanocode.conversation import ConversationError, Message, ToolCall


class Model:
    """Runs the command that the user names, then reports; breaks off on ``break``."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        last = conversation[-1]
        if last.content == "break":
            raise ConversationError("the tool call is not closed")
        if last.role == "user":
            return Message("assistant", "", ToolCall("Bash", {"command": last.content}))
        return Message("assistant", f"it says {last.content}")


@pytest.fixture(autouse=True)
def model(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, ...]]:
    loaded: list[tuple[object, ...]] = []

    def load_responder(*arguments: object) -> Model:
        loaded.append(arguments)
        return Model()

    module = types.ModuleType("nanocode.cli.model_loading")
    module.load_responder = load_responder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nanocode.cli.model_loading", module)
    return loaded


def invoke(*arguments: str, stdin: str = "") -> Result:
    application = typer.Typer()
    application.command()(command.agent)
    return CliRunner().invoke(application, list(arguments), input=stdin)


def test_one_shot(tmp_path: Path, model: list[tuple[object, ...]]) -> None:
    result = invoke("nano", "-p", "echo hi", "--workspace", str(tmp_path), "--mode", "auto", "--temperature", "0.5")
    assert result.exit_code == 0 and result.stdout == "Bash(command='echo hi')\nhi\nit says hi\n"
    assert model == [("nano", None, 0.5, 0)]


def test_a_prompt_can_be_piped_in(tmp_path: Path) -> None:
    result = invoke("--workspace", str(tmp_path), "--mode", "auto", stdin="echo hi\n")
    assert result.exit_code == 0 and result.stdout.endswith("it says hi\n")


def test_json_is_the_only_thing_on_standard_output(tmp_path: Path) -> None:
    result = invoke("-p", "echo hi", "--workspace", str(tmp_path), "--mode", "auto", "--json")
    document = json.loads(result.stdout)
    assert (document["stop_reason"], document["calls"], document["failed_calls"]) == ("finished", 1, 0)
    assert document["conversation"][-1] == {"role": "assistant", "content": "it says hi"}


def test_a_run_that_breaks_off_exits_with_1(tmp_path: Path) -> None:
    result = invoke("-p", "break", "--workspace", str(tmp_path))
    assert result.exit_code == 1 and "stopped (malformed): the tool call is not closed" in result.stdout


def test_without_a_terminal_asking_is_refusing(tmp_path: Path) -> None:
    result = invoke("-p", "touch x", "--workspace", str(tmp_path))
    assert "error: not allowed: nobody to ask (mode ask)" in result.stdout and list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [["--workspace", "/nonexistent", "-p", "x"], ["--mode", "yolo"], ["-p", ""], []])
def test_wrong_use_exits_with_2_before_a_model_is_loaded(arguments: list[str], model: list[tuple[object, ...]]) -> None:
    assert invoke(*arguments).exit_code == 2 and model == []


def test_without_a_sandbox_bash_is_off_and_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise SandboxUnavailable("bubblewrap is not installed: install it")

    monkeypatch.setattr(command, "Sandbox", missing)
    arguments = ["-p", "touch x", "--workspace", str(tmp_path), "--mode", "auto"]
    result = invoke(*arguments)
    assert "Bash is off: bubblewrap is not installed" in result.stderr and "--unsafe" in result.stderr
    assert "error: Bash is off: there is no sandbox" in result.stdout and list(tmp_path.iterdir()) == []
    unsafe = invoke(*arguments, "--unsafe")
    assert "UNSAFE" in unsafe.stderr and (tmp_path / "x").exists()
