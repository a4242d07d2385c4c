"""`nanocode agent` from outside: exit codes, events, pipes, and what it refuses."""

import errno
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from nanocode.agent.audit import AuditError, verify
from nanocode.agent.sandbox import SandboxUnavailable
from nanocode.agent.terminal_commands import Model
from nanocode.agent.undo import DiskImages
from nanocode.cli import agent as command
from nanocode.cli import agent_setup
from nanocode.cli.agent_model import Request
from nanocode.conversation import MalformedReply, Message, ToolCall, from_json
from nanocode.inference.cut import CutReply


class Runner:
    """Runs the command that the user names, then reports; only malformed replies follow ``break``, ``long`` is cut."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        last = conversation[-1]
        if conversation[0].content == "break":
            raise MalformedReply("the tool call is not closed", Message("assistant", "", ToolCall("Read")))
        if last.content == "long":
            return CutReply("assistant", "once upon", why="cut off after 2 tokens")
        if last.content == "away":
            raise RuntimeError("the endpoint is away")
        if last.role == "user":
            return Message("assistant", "", ToolCall("Bash", {"command": last.content}))
        return Message("assistant", f"it says {last.content}")


class Speaker(Runner):
    """Says it in pieces."""

    def stream(self, conversation: Sequence[Message]) -> Any:
        message = self.respond(conversation)
        yield from message.content
        yield message


class OneModel:
    """A source of models that knows one."""

    first = None

    def __init__(self, responder: Runner) -> None:
        self.responder = responder
        self.requests: list[Request] = []

    def load(self, name: str | None) -> Model:
        count = lambda conversation: 7 * len(conversation)  # noqa: E731
        return Model("fake@1", self.responder, count=count, generated=iter(range(0, 100, 42)).__next__)

    def names(self) -> list[str]:
        return []


@pytest.fixture(autouse=True)
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> OneModel:
    fake = OneModel(Runner())

    def choose(request: Request) -> OneModel:
        fake.requests.append(request)
        return fake

    monkeypatch.setattr(command, "chosen_source", choose)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return fake


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def invoke(*arguments: str, stdin: str | bytes = "") -> Result:
    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(command.agent)
    return CliRunner().invoke(application, list(arguments), input=stdin)


def events(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_one_shot(work: Path, source: OneModel) -> None:
    result = invoke("nano", "-p", "echo hi", "--workspace", str(work), "--mode", "auto", "--temperature", "0.5")
    assert result.exit_code == 0 and result.stdout == "Bash\n  echo hi\nhi\nit says hi\n"
    (request,) = source.requests
    assert (request.model, request.sampling.temperature, request.sampling.seed) == ("nano", 0.5, 0)


def test_a_prompt_can_be_piped_in_and_what_is_piped_goes_behind_a_prompt(work: Path) -> None:
    piped = invoke("--workspace", str(work), "--mode", "auto", stdin="echo hi\n")
    assert piped.exit_code == 0 and piped.stdout.endswith("it says hi\n")
    both = invoke("-p", "echo one", "--workspace", str(work), "--mode", "auto", stdin="echo two\n")
    assert both.stdout.startswith("Bash\n  echo one\n  \n  echo two\n")


def test_a_locale_without_the_characters_ends_no_run(work: Path) -> None:
    application = typer.Typer(pretty_exceptions_enable=False)
    application.command()(command.agent)
    arguments = ["-p", "echo é", "--workspace", str(work), "--mode", "auto"]
    result = CliRunner(charset="ascii").invoke(application, arguments)
    assert result.exit_code == 0 and "it says \\xe9" in result.stdout


def test_events_come_one_a_line_and_the_last_is_the_result(work: Path, source: OneModel) -> None:
    source.responder = Speaker()
    result = invoke("-p", "echo é", "--workspace", str(work), "--mode", "auto", "--json")
    found = events(result)
    assert result.exit_code == 0 and result.stdout.isascii()
    assert found[0] == {
        "type": "start",
        "version": 1,
        "model": "fake@1",
        "workspace": str(work.resolve()),
        "mode": "auto",
        "sandbox": "bubblewrap",
        "audit_log": found[0]["audit_log"],
    }
    assert found[1:3] == [
        {"type": "tool_call", "name": "Bash", "arguments": {"command": "echo é"}},
        {"type": "tool_result", "name": "Bash", "ok": True, "text": "é"},
    ]
    deltas = [event["text"] for event in found if event["type"] == "text_delta"]
    assert "".join(deltas) == "it says é" and len(deltas) > 1
    assert found[-3:-1] == [
        {"type": "text", "text": "it says é"},
        {"type": "stopped", "reason": "finished", "detail": ""},
    ]
    last = found[-1]
    assert (last["type"], last["stop_reason"], last["calls"], last["failed_calls"]) == ("result", "finished", 1, 0)
    assert (last["generated_tokens"], last["context_tokens"]) == (42, 28) and last["seconds"] >= 0
    assert from_json(last["conversation"])[-1] == Message("assistant", "it says é")


def test_a_run_that_breaks_off_exits_with_1(work: Path) -> None:
    arguments = ["-p", "break", "--workspace", str(work)]
    result = invoke(*arguments)
    assert result.exit_code == 1 and "malformed reply: the tool call is not closed" in result.stdout
    found = events(invoke(*arguments, "--json"))
    assert [event["type"] for event in found][:2] == ["start", "malformed"]
    assert found[-1]["stop_reason"] == "malformed"


def test_a_reply_that_was_cut_is_said_and_is_no_end_of_its_own(work: Path) -> None:
    arguments = ["-p", "long", "--workspace", str(work)]
    drawn = invoke(*arguments)
    assert drawn.exit_code == 1
    assert drawn.stdout == "once upon\nstopped (length): the reply was cut off after 2 tokens\n"
    written = invoke(*arguments, "--json")
    assert written.exit_code == 1
    *_, said, stopped, result = events(written)
    assert said == {"type": "text", "text": "once upon"}
    assert stopped == {"type": "stopped", "reason": "length", "detail": "the reply was cut off after 2 tokens"}
    assert result["stop_reason"] == "length" and result["conversation"][-1]["content"] == "once upon"


def test_an_error_ends_the_events_with_a_result_too(work: Path) -> None:
    result = invoke("-p", "away", "--workspace", str(work), "--json")
    assert isinstance(result.exception, RuntimeError), "the command line makes one line and exit code 1 of it"
    last = events(result)[-1]
    assert (last["type"], last["stop_reason"], last["detail"]) == ("result", "error", "the endpoint is away")


def test_ctrl_c_ends_a_one_shot_with_a_result(work: Path, source: OneModel, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(conversation: Sequence[Message]) -> Message:
        raise KeyboardInterrupt

    monkeypatch.setattr(source.responder, "respond", interrupted)
    result = invoke("-p", "x", "--workspace", str(work), "--json")
    assert result.exit_code == 1 and events(result)[-1]["stop_reason"] == "interrupted"


def test_without_a_terminal_asking_is_refusing(work: Path) -> None:
    result = invoke("-p", "touch x", "--workspace", str(work))
    assert "error: not allowed: nobody to ask (mode ask)" in result.stdout and list(work.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--workspace", "/nonexistent", "-p", "x"], "/nonexistent does not exist"),
        (["--workspace", __file__, "-p", "x"], "is not a folder"),
        (["--mode", "yolo"], "yolo"),
        (["-p", ""], "nothing to do"),
        (["--json"], "nothing to do"),
        ([], "nothing to do"),
        (["-p", "x", "--top-p", "0"], "top_p must be above 0"),
    ],
)
def test_wrong_use_exits_with_2_before_a_model_is_loaded(
    arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneModel, "load", lambda *_: pytest.fail("a model was loaded"))
    result = invoke(*arguments)
    assert result.exit_code == 2 and said in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("piped", "said"), [(b"\xff\xfe", "not UTF-8"), (b"x" * (agent_setup.MAX_INPUT_BYTES + 1), "more than")]
)
def test_what_is_piped_in_must_be_text_of_some_size(work: Path, piped: bytes, said: str) -> None:
    result = invoke("--workspace", str(work), stdin=piped)
    assert result.exit_code == 2 and said in result.stderr


def test_a_read_only_workspace_is_said_and_edits_are_refused(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, rights: access(path, rights) and not rights & os.W_OK)
    result = invoke("-p", "echo hi", "--workspace", str(work), "--mode", "auto")
    assert result.exit_code == 0 and f"{work} is read-only: edits will be refused" in result.stderr


def test_without_a_sandbox_bash_is_off_and_it_says_so(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise SandboxUnavailable("bubblewrap is not installed: install it")

    monkeypatch.setattr(agent_setup, "Sandbox", missing)
    arguments = ["-p", "touch x", "--workspace", str(work), "--mode", "auto", "--json"]
    result = invoke(*arguments)
    assert "Bash is off: bubblewrap is not installed" in result.stderr and "--unsafe" in result.stderr
    assert "error: Bash is off: there is no sandbox" in result.stdout and list(work.iterdir()) == []
    unsafe = invoke(*arguments, "--unsafe")
    assert "UNSAFE" in unsafe.stderr and (work / "x").exists()
    assert [events(each)[0]["sandbox"] for each in (result, unsafe)] == ["off", "none"]


def test_every_call_is_logged_outside_of_the_workspace_unless_that_is_unwanted(work: Path, tmp_path: Path) -> None:
    arguments = ["-p", "echo hi", "--workspace", str(work), "--mode", "auto", "--json"]
    log = Path(events(invoke(*arguments))[0]["audit_log"])
    assert log.parent == tmp_path / "state" / "nanocode" / "audit"
    assert [entry["kind"] for entry in verify(log).entries] == ["header", "opened", "intent", "call"]
    assert events(invoke(*arguments, "--audit-log", "none"))[0]["audit_log"] is None
    chosen = invoke(*arguments, "--audit-log", str(tmp_path / "mine.jsonl"))
    assert chosen.exit_code == 0 and len(verify(tmp_path / "mine.jsonl").entries) == 4
    inside = invoke(*arguments, "--audit-log", str(work / "log.jsonl"))
    assert isinstance(inside.exception, AuditError) and "lies in the workspace" in str(inside.exception)


def test_what_undo_no_longer_needs_goes_at_the_start_of_a_session(work: Path, tmp_path: Path) -> None:
    log = tmp_path / "logs" / "mine.jsonl"
    images = DiskImages(log.parent / "before")
    digest = images.put(b"a month old")
    (image,) = images.folder.glob("*/*")
    arguments = ["-p", "echo hi", "--workspace", str(work), "--mode", "auto", "--audit-log", str(log)]
    for wanted, stays in ((["--undo-days", "40"], True), (["--undo-days", "40", "--undo-megabytes", "0"], False)):
        os.utime(image, (0, time.time() - 31 * 86_400))
        assert invoke(*arguments, *wanted).exit_code == 0 and image.exists() == stays
    assert images.put(b"a month old") == digest
    os.utime(image, (0, time.time() - 31 * 86_400))
    assert invoke(*arguments).exit_code == 0 and not image.exists(), "30 days unless asked for more"


def test_a_log_that_cannot_be_written_is_said_with_the_cure(work: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    result = invoke("-p", "echo hi", "--workspace", str(work), "--audit-log", str(tmp_path / "file" / "log.jsonl"))
    assert isinstance(result.exception, AuditError)
    assert "log.jsonl cannot be written" in str(result.exception) and "--audit-log, or none" in str(result.exception)


def test_a_folder_in_which_no_room_can_be_made_is_said_and_ends_nothing(
    work: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(agent_setup, "make_room", broken)
    told = invoke("-p", "echo hi", "--workspace", str(work), "--mode", "auto")
    assert told.exit_code == 0 and "old files that undo has kept stay in" in told.stderr


def test_rules_come_from_the_user_s_configuration(work: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    rules = tmp_path / "config" / "nanocode" / "agent.toml"
    rules.parent.mkdir(parents=True)
    rules.write_text('[allow]\nBash = ["echo hi"]\n')
    arguments = ["--workspace", str(work), "-p"]
    assert "it says hi" in invoke(*arguments, "echo hi").stdout, "allowed without a question"
    assert "not allowed" in invoke(*arguments, "echo other").stdout
    rules.write_text("deny = 3")
    wrong = invoke(*arguments, "echo hi")
    assert wrong.exit_code == 2 and "must be a list" in " ".join(wrong.stderr.replace("│", " ").split())
    assert invoke(*arguments, "echo hi", "--rules", str(tmp_path / "absent.toml")).exit_code == 2


def test_a_conversation_that_nobody_would_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, terminal in (("stdin", True), ("stdout", False)):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda terminal=terminal: terminal))
    with pytest.raises(typer.BadParameter, match="needs a terminal"):
        agent_setup.task(None, False)
    assert agent_setup.task("do it", False) == "do it"


def test_a_standard_input_that_stays_open_is_explained() -> None:
    program = "from nanocode.cli import agent_setup as s; s.PATIENCE_SECONDS = 0.1; print(s.task('do', False))"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        text=True,
    )
    assert process.stderr is not None
    assert "waiting for standard input" in process.stderr.readline()
    assert process.communicate("more")[0] == "do\n\nmore\n"
