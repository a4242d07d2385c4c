"""The log tells what happened, and whether somebody has been at it."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from artifacts.fingerprint import code_fingerprint
from nanocode.agent.audit import NOTHING, AuditError, AuditLog, shown_arguments, verify
from nanocode.agent.policy import Policy
from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits, SandboxUnavailable
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

LINES = 6
Tamper = Callable[[list[bytes]], list[bytes]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A log of LINES lines, closed."""
    path = tmp_path / "state" / "one.jsonl"
    with AuditLog(path, clock=lambda: 7.0) as log:
        for number in range(LINES - 1):
            log.append("call", call=number, tool="Bash", rule=f"r{number}")
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_each_line_holds_its_number_and_the_hash_of_the_line_before(path: Path) -> None:
    entries = verify(path).entries
    assert [entry["line"] for entry in entries] == [1, 2, 3, 4, 5, 6]
    assert entries[0] == {
        **{"line": 1, "kind": "header", "time": 7.0, "session": "one", "version": 1, "previous": NOTHING}
    }
    assert entries[1]["rule"] == "r0" and len({entry["previous"] for entry in entries}) == LINES


def altered(number: int) -> Tamper:
    return lambda lines: [
        line.replace(b'"time": 7.0', b'"time": 8.0') if place == number else line
        for place, line in enumerate(lines, start=1)
    ]


def other_hash(number: int) -> Tamper:
    def change(lines: list[bytes]) -> list[bytes]:
        entry = {**json.loads(lines[number - 1]), "previous": "1" * 64}
        return [*lines[: number - 1], json.dumps(entry).encode() + b"\n", *lines[number:]]

    return change


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        *((altered(number), f"line {number} was altered") for number in range(1, LINES + 1)),
        *((other_hash(number), f"line {number} was altered") for number in range(2, LINES + 1)),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 is gone or moved: line 4 stands in its place"),
        (lambda lines: lines[1:], "line 1 is gone or moved: line 2 stands in its place"),
        (lambda lines: [*lines[:2], lines[3], lines[2], *lines[4:]], "line 3 is gone or moved: line 4"),
        (lambda lines: [*lines[:3], lines[1], *lines[3:]], "line 4 is gone or moved: line 2"),
        (lambda lines: lines[:-1], "line 6 is missing: the tail was cut off"),
        (lambda lines: lines[:2], "line 3 is missing: the tail was cut off"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "line 6 is missing: the tail was cut off"),
        (lambda lines: [], "line 1 is missing"),
        (lambda lines: [*lines[:3], b"what\n", *lines[4:]], "line 4 was altered: it is no entry of a log"),
        (lambda lines: [lines[0][:-1] + lines[1], *lines[2:]], "line 1 was altered"),
        (lambda lines: [*lines[:3], b"[1]\n", *lines[4:]], "line 4 was altered: it is no entry of a log"),
    ],
)
def test_the_first_line_that_is_not_what_was_written_is_named(path: Path, tamper: Tamper, said: str) -> None:
    path.write_bytes(b"".join(tamper(lines_of(path))))
    with pytest.raises(AuditError, match=said):
        verify(path)
    with pytest.raises(AuditError, match=said):
        AuditLog(path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(min_value=0), bit=st.integers(0, 7))
def test_no_bit_can_be_changed(path: Path, at: int, bit: int) -> None:
    whole = path.read_bytes()
    data = bytearray(whole)
    data[at % len(data)] ^= 1 << bit
    path.write_bytes(data)
    with pytest.raises(AuditError):
        verify(path)
    path.write_bytes(whole)


@pytest.mark.parametrize("kept", [1, 30, 90])
def test_a_line_that_a_crash_tore_is_told_from_tampering_and_cut_off(path: Path, kept: int) -> None:
    line = lines_of(path)[-1]
    with path.open("ab") as file:
        file.write(line[:kept])
    found = verify(path)
    assert (len(found.entries), found.torn_bytes) == (LINES, kept)
    with AuditLog(path) as log:
        log.append("call", call=log.next_call)
    assert [(entry["kind"], entry.get("bytes")) for entry in verify(path).entries[LINES:]] == [
        ("torn", kept),
        ("call", None),
    ]


def test_a_crash_before_the_head_file_leaves_a_log_that_verifies(path: Path) -> None:
    head = path.with_name("one.jsonl.head")
    older = head.read_bytes()
    with AuditLog(path) as log:
        log.append("call", call=9)
    head.write_bytes(older)
    assert len(verify(path).entries) == LINES + 1
    with AuditLog(path) as log:
        assert log.next_call == 10


def test_lines_that_are_not_waited_for_are_vouched_for_from_the_next_that_is(path: Path) -> None:
    head = path.with_name("one.jsonl.head")
    with AuditLog(path) as log:
        settled = head.read_bytes()
        log.append("call", durable=False, call=8)
        assert head.read_bytes() == settled and len(verify(path).entries) == LINES + 1
        log.append("call", call=9)
        assert head.read_text().startswith(f"{LINES + 2:020d} ")
        log.append("call", durable=False, call=10)
    assert head.read_text().startswith(f"{LINES + 3:020d} ")


def test_a_crash_in_the_first_line_leaves_a_log_that_can_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "new.jsonl"
    path.write_bytes(b'{"line": 1, "ki')
    path.with_name("new.jsonl.head").write_text(f"{0:020d} {NOTHING}\n")
    assert verify(path).torn_bytes == 15
    AuditLog(path).close()
    assert [entry["kind"] for entry in verify(path).entries] == ["header", "torn"]


@pytest.mark.parametrize(("content", "said"), [(None, "is missing"), ("", "was altered"), ("x y", "was altered")])
def test_the_head_file_is_part_of_the_log(path: Path, content: str | None, said: str) -> None:
    head = path.with_name("one.jsonl.head")
    head.unlink()
    if content is not None:
        head.write_text(content)
    with pytest.raises(AuditError, match=said):
        verify(path)


def test_a_log_of_another_version_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocode.agent.audit.VERSION", 2)
    with pytest.raises(AuditError, match="not the header of a log of version 2"):
        verify(path)


def test_a_log_that_is_not_there_cannot_be_verified(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="cannot be read: No such file"):
        verify(tmp_path / "none.jsonl")


def test_one_log_belongs_to_one_session_at_a_time(path: Path) -> None:
    with AuditLog(path), pytest.raises(AuditError, match="in use by another session"):
        AuditLog(path)
    AuditLog(path).close()


def test_only_its_owner_can_read_a_log(path: Path) -> None:
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_log_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic link"):
        AuditLog(tmp_path / "link.jsonl")


def test_a_log_in_the_workspace_is_refused(tmp_path: Path) -> None:
    """The agent could write a history of its own."""
    with (
        AuditLog(tmp_path / "work" / "deep" / "a.jsonl") as log,
        pytest.raises(AuditError, match="lies in the workspace"),
    ):
        Toolbox(tmp_path / "work", Policy(), None, audit=log)


class Shell:
    """Answers without running anything; ``act`` does what the command would."""

    def __init__(self, completed: Completed | BaseException, act: Callable[[], object] = lambda: None) -> None:
        self.completed, self.act = completed, act

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        self.act()
        if isinstance(self.completed, BaseException):
            raise self.completed
        return self.completed


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\n")
    return folder


def logged(path: Path, *kinds: str) -> list[dict[str, object]]:
    return [dict(entry) for entry in verify(path).entries if entry["kind"] in (kinds or ("call",))]


def test_one_line_tells_all_of_a_call(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    with AuditLog(path, "s1", clock=lambda: 5.0) as log:
        toolbox = Toolbox(workspace, Policy("auto"), None, audit=log)
        toolbox.execute(ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"}))
    (line,) = logged(path)
    before, after = "x = 1\n", "x = 2\n"
    change = {"path": "a.py", "before": digest(before), "after": digest(after), "mode": 0o644}
    seconds = line.pop("seconds")
    assert isinstance(seconds, float) and 0 <= seconds < 60
    assert {name: value for name, value in line.items() if name not in ("line", "previous")} == {
        "kind": "call",
        "time": 5.0,
        "session": "s1",
        "call": 0,
        "tool": "Edit",
        "arguments": {"file_path": "a.py", "old_string": "1", "new_string": "2"},
        "decision": "allow",
        "rule": "mode auto",
        "files": [change],
        "uncovered": 0,
        "exit_code": None,
        "bytes": len("edited a.py, line 1"),
        "ok": True,
    }


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def test_every_call_has_a_line_and_what_ran_an_intent_before_it(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("ask"), Shell(Completed("boom", 3)), audit=log)
        for call in [
            ToolCall("Read", {"file_path": "a.py"}),
            ToolCall("Read", {"file_path": "none"}),
            ToolCall("Grep", {"pattern": "x"}),
            ToolCall("Bash", {"command": "false"}),
            ToolCall("Edit", {"file_path": ".git/config", "new_string": "x"}),
            ToolCall("Write", {"x": "y"}),
        ]:
            toolbox.execute(call)
    told = [(line["kind"], line["tool"], line["decision"], line["rule"]) for line in logged(path, "intent", "call")]
    assert told == [
        ("intent", "Read", "allow", "mode ask"),
        ("call", "Read", "allow", "mode ask"),
        ("intent", "Read", "allow", "mode ask"),
        ("call", "Read", "allow", "mode ask"),
        ("intent", "Grep", "allow", "mode ask"),
        ("call", "Grep", "allow", "mode ask"),
        ("call", "Bash", "deny", "nobody to ask (mode ask)"),
        ("call", "Edit", "deny", ".git/config is protected"),
        ("call", "Write", "deny", "the call cannot be carried out"),
    ]
    assert [line["ok"] for line in logged(path)] == [True, False, True, False, False, False]


def test_a_command_is_logged_with_its_exit_code_and_the_files_that_it_changed(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    shell = Shell(Completed("out", 3), lambda: (workspace / "a.py").write_text("x = 9\n"))
    with AuditLog(path) as log:
        Toolbox(workspace, Policy("auto"), shell, audit=log).execute(ToolCall("Bash", {"command": "make"}))
    (line,) = logged(path)
    assert (line["exit_code"], line["ok"], line["bytes"]) == (3, False, len("out\nexit code 3"))
    assert line["files"] == [{"path": "a.py", "before": digest("x = 1\n"), "after": digest("x = 9\n"), "mode": 0o644}]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), SandboxUnavailable("broken")])
def test_what_an_interrupted_command_did_is_logged(
    tmp_path: Path, workspace: Path, interruption: BaseException
) -> None:
    path = tmp_path / "log.jsonl"
    shell = Shell(interruption, lambda: (workspace / "a.py").write_text("half"))
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("auto"), shell, audit=log)
        with pytest.raises(type(interruption)):
            toolbox.execute(ToolCall("Bash", {"command": "make"}))
        assert toolbox.undo() == "a.py" and (workspace / "a.py").read_text() == "x = 1\n"
    (line,) = logged(path)
    assert (line["ok"], line["exit_code"], len(line["files"])) == (False, None, 1)  # type: ignore[arg-type]


def die_in_a_command(path: Path, workspace: Path) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), Shell(Completed("", 0), lambda: os._exit(9)), audit=AuditLog(path))
    toolbox.execute(ToolCall("Edit", {"file_path": "b.py", "new_string": "b"}))
    toolbox.execute(ToolCall("Bash", {"command": "rm -rf ."}))


def test_a_crash_leaves_the_intent(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    process = multiprocessing.get_context("fork").Process(target=die_in_a_command, args=(path, workspace))
    process.start()
    process.join(30)
    assert process.exitcode == 9
    last = logged(path, "intent", "call")[-1]
    assert (last["kind"], last["arguments"]) == ("intent", {"command": "rm -rf ."})


def work_for_ever(path: Path, workspace: Path) -> None:
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=AuditLog(path))
    for number in itertools.count():
        old = (workspace / "a.py").read_text()
        arguments = {"file_path": "a.py", "old_string": old, "new_string": f"x = {number}\n"}
        toolbox.execute(ToolCall("Read", {"file_path": "a.py"}))
        toolbox.execute(ToolCall("Edit", arguments))


def test_a_log_survives_being_killed_at_any_instant_and_all_edits_can_be_undone(
    tmp_path: Path, workspace: Path
) -> None:
    path = tmp_path / "log.jsonl"
    for size in (1, 4_000, 9_000, 20_000):
        process = multiprocessing.get_context("fork").Process(target=work_for_ever, args=(path, workspace))
        process.start()
        while process.is_alive() and (not path.exists() or path.stat().st_size < size):
            time.sleep(0.001)
        process.kill()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
        verify(path)
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("auto"), None, audit=log)
        assert sum(1 for _ in iter(toolbox.undo, None)) >= 3
    assert (workspace / "a.py").read_text() == "x = 1\n"


def test_nothing_runs_when_the_log_cannot_be_written(tmp_path: Path, workspace: Path) -> None:
    log = AuditLog(tmp_path / "log.jsonl")
    toolbox = Toolbox(workspace, Policy("auto"), None, audit=log)
    log.close()
    with pytest.raises(AuditError, match="nothing runs without its log"):
        toolbox.execute(ToolCall("Edit", {"file_path": "a.py", "old_string": "1", "new_string": "2"}))
    assert (workspace / "a.py").read_text() == "x = 1\n"


def test_arguments_are_redacted_and_long_ones_cut(tmp_path: Path, workspace: Path) -> None:
    path = tmp_path / "log.jsonl"
    key = "ghp_" + "a1B2" * 10
    with AuditLog(path) as log:
        toolbox = Toolbox(workspace, Policy("ask"), None, audit=log)
        toolbox.execute(ToolCall("Bash", {"command": f"curl -H 'Authorization: Bearer {key}' example.com"}))
        toolbox.execute(ToolCall("Edit", {"file_path": "k", "new_string": f"KEY = '{key}'" + "x" * 5_000}))
    assert key.encode() not in path.read_bytes()
    long = shown_arguments({"new_string": "x" * 5_000})["new_string"]
    assert long.startswith("x" * 2_000 + "... (5000 characters in all, sha256 ")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(values=st.dictionaries(st.text(max_size=5), st.text(st.characters(), max_size=20), max_size=3))
def test_any_text_can_be_logged(tmp_path: Path, values: dict[str, str]) -> None:
    path = tmp_path / "any.jsonl"
    with AuditLog(path) as log:
        log.append("call", call=log.next_call, files=values)
    assert verify(path).entries[-1]["files"] == values


def test_what_stages_run_knows_nothing_of_logs() -> None:
    """Their cache keys hold the code that they import: an edit to the log must not train a model again."""
    modules = code_fingerprint("nanocode.agent.tools", root=Path(__file__).parents[2]).modules
    assert "nanocode.agent.journal" in modules
    assert not {"nanocode.agent.audit", "nanocode.agent.redaction", "nanocode.data.filters"} & set(modules)
