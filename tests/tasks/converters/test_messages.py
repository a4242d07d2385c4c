"""Chat messages of other projects: their calls become ours and are executed again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable, UnsafeShell
from nanocode.agent.tools import Toolbox
from nanocode.conversation import Message, ToolCall, to_json
from nanocode.tasks.converters.convert import CONVERTERS, convert
from nanocode.tasks.converters.plans import Converted, Dropped, Row

User = dict[str, Any]


def toolbox(workspace: Path) -> Toolbox:
    return Toolbox(workspace, Policy("auto"), UnsafeShell())


def outcome_of(messages: Any, tmp_path: Path, **columns: Any) -> Converted | Dropped:
    row = Row("chat.jsonl#0", "MIT", {"messages": messages} | columns)
    (outcome,) = convert([row], CONVERTERS["messages"], toolbox, scratch=tmp_path)
    return outcome


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def says(text: str, *calls: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    tool_calls = [
        {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text or None} | ({"tool_calls": tool_calls} if calls else {})


def answers(text: str, number: int = 0) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def test_foreign_names_become_our_tools_and_results_are_real(tmp_path: Path) -> None:
    chat = [
        {"role": "system", "content": "You have str_replace."},
        user("set it to 2"),
        says("", ("view_file", {"path": "a.py", "offset": 1})),
        answers("x = 1 (as another tool shows it)"),
        says("", ("str_replace", {"path": "a.py", "old_str": "x = 1", "new_str": "x = 2"})),
        answers("OK"),
        says("done"),
    ]
    outcome = outcome_of(chat, tmp_path, files={"a.py": "x = 1\n"})
    assert isinstance(outcome, Converted)
    edit = {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"}
    assert outcome.messages == (
        Message("user", "set it to 2"),
        Message("assistant", "", ToolCall("Read", {"file_path": "a.py", "offset": "1"})),
        Message("tool_result", "    1→x = 1"),
        Message("assistant", "", ToolCall("Edit", edit)),
        Message("tool_result", "edited a.py, line 1"),
        Message("assistant", "done"),
    )
    assert outcome.plan.notes == {"left_out": "system message"}


def test_our_own_format_comes_back_as_it_was(tmp_path: Path) -> None:
    own = [
        Message("user", "write it"),
        Message("assistant", "so be it", ToolCall("Edit", {"file_path": "b.txt", "new_string": "hello\n"})),
        Message("tool_result", "created b.txt, 1 line"),
        Message("assistant", "done"),
    ]
    outcome = outcome_of(to_json(own), tmp_path)
    assert isinstance(outcome, Converted)
    assert list(outcome.messages) == own


def test_calls_of_one_turn_are_executed_one_after_another(tmp_path: Path) -> None:
    both = says("both", ("write", {"path": "a", "content": "1\n"}), ("write", {"path": "b", "content": "2\n"}))
    outcome = outcome_of([user("go"), both, answers("", 1), answers("", 0), says("done")], tmp_path)
    assert isinstance(outcome, Converted)
    assert [message.content for message in outcome.messages[1:]] == [
        "both", "created a, 1 line", "", "created b, 1 line", "done",
    ]  # fmt: skip


def test_a_failure_that_the_set_records_stays_one(tmp_path: Path) -> None:
    chat = [user("read it"), says("", ("Read", {"file_path": "no.py"})), answers("Error: no such file"), says("gone")]
    outcome = outcome_of(chat, tmp_path)
    assert isinstance(outcome, Converted)
    assert outcome.messages[2] == Message("tool_result", "error: file not found: no.py")


def has_sandbox() -> bool:
    try:
        return Sandbox().available()
    except SandboxUnavailable:
        return False


@pytest.mark.skipif(not has_sandbox(), reason="needs the sandbox")
def test_a_command_runs_in_the_sandbox_with_the_files_of_the_row(tmp_path: Path) -> None:
    chat = [user("count"), says("", ("bash", {"cmd": "wc -l < a.txt"})), answers("2"), says("two")]
    row = Row("chat.jsonl#0", "MIT", {"messages": chat, "files": [["a.txt", "1\n2\n"]]})
    (outcome,) = convert([row], CONVERTERS["messages"], lambda w: Toolbox(w, Policy("auto"), Sandbox()))
    assert isinstance(outcome, Converted)
    assert outcome.messages[2].content.strip() == "2"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
FUNCTION = st.fixed_dictionaries(
    {},
    optional={
        "name": JSON | st.sampled_from(["Read", "write", "grep", "mystery"]),
        "arguments": JSON | st.just('{"path": "a"}') | st.just({"file_path": "a", "content": "x"}),
        "id": JSON,
        "function": JSON,
    },
)
ENTRY = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system", "tool_result", None])},
    optional={
        "content": JSON | st.just("words"),
        "tool_calls": JSON | st.lists(FUNCTION, max_size=2),
        "tool_call": JSON | FUNCTION,
        "tool_call_id": JSON,
    },
)


@settings(max_examples=100, deadline=None)
@given(st.lists(ENTRY, max_size=5) | JSON, JSON | st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2))
def test_whatever_a_row_holds_it_is_converted_or_dropped(messages: Any, files: Any) -> None:
    row = Row("chat.jsonl#0", "MIT", {"messages": messages, "files": files})
    (outcome,) = convert([row], CONVERTERS["messages"], lambda folder: Toolbox(folder, Policy("auto"), None))
    assert isinstance(outcome, (Converted, Dropped))


CALL = says("", ("Grep", {"pattern": "x"}))


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("text", "not messages"),
        ([], "not messages"),
        ([says("hello"), user("hi")], "does not open with the user"),
        ([user("hi")], "does not end with an answer"),
        ([user("hi"), says("  ")], "does not end with an answer"),
        ([user("hi"), user("hello?"), says("yes")], "turns out of order"),
        ([user("hi"), says("yes"), says("and no")], "turns out of order"),
        ([user("hi"), CALL, says("done")], "a tool call without a result"),
        ([user("hi"), answers("x"), says("done")], "a tool result without a call"),
        ([user("hi"), CALL, answers("x", 3), says("done")], "a tool result without a call"),
        ([user("hi"), says("", ("browse", {"url": "x"})), answers(""), says("done")], "unknown tool browse"),
        ([user("hi"), says("", ("Read", {"file_path": "x", "mode": "r"})), answers(""), says("a")],
         "Read has no argument mode"),
        ([user("hi"), says("", ("Read", {"file_path": "x"})), answers("text"), says("done")], "Read fails"),
        ([user("hi"), says("", ("Read", {"file_path": ["x"]})), answers("text"), says("done")], "not text"),
        ([user("hi"), says("", ("Bash", {"command": "date +%N"})), answers("1"), says("x")],
         "results are not repeatable"),
        ([user("hi"), {"role": "critic", "content": "x"}, says("done")], "unknown role"),
        ([user("hi"), {"role": "assistant", "tool_calls": [{"function": {"name": "Read", "arguments": "{"}}]},
          answers(""), says("done")], "malformed tool call"),
        ([user("hi"), {"role": "assistant", "tool_calls": ["Read"]}, says("done")], "malformed tool call"),
        ([user("привет, как дела"), says("хорошо, спасибо")], "prose is not ASCII"),
    ],
)  # fmt: skip
def test_a_row_that_makes_no_conversation_says_why(messages: Any, expected: str, tmp_path: Path) -> None:
    outcome = outcome_of(messages, tmp_path)
    assert isinstance(outcome, Dropped), outcome
    assert outcome.reason == expected


@pytest.mark.parametrize("path", ["../out.txt", "/etc/out.txt", ""])
def test_files_cannot_leave_the_workspace(path: str, tmp_path: Path) -> None:
    outcome = outcome_of([user("hi"), says("hello")], tmp_path, files={path: "x"})
    assert isinstance(outcome, Dropped)
    assert outcome.reason == "files cannot be written"
