"""The loop between model and tools: what enters the conversation, and what ends it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nanocode.agent.audit import AuditLog, verify
from nanocode.agent.context import ELIDED, ContextWindow
from nanocode.agent.policy import Policy
from nanocode.agent.session import (
    AssistantText,
    CallFinished,
    CallRequested,
    Elided,
    Malformed,
    Session,
    SessionLimits,
    Stopped,
    TextDelta,
)
from nanocode.agent.tools import Toolbox, ToolResult
from nanocode.conversation import ConversationError, MalformedReply, Message, ToolCall
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow

READ = ToolCall("Read", {"file_path": "a.py"})
DONE = Message("assistant", "done")


@dataclass
class Scripted:
    """Says its lines in order; an exception is raised instead of said."""

    lines: Iterator[Message | Exception]
    heard: list[tuple[Message, ...]] = field(default_factory=list)

    def respond(self, conversation: Sequence[Message]) -> Message:
        self.heard.append(tuple(conversation))
        line = next(self.lines)
        if isinstance(line, Exception):
            raise line
        return line


def calling(call: ToolCall, text: str = "") -> Message:
    return Message("assistant", text, call)


def session(tmp_path: Path, *lines: Message | Exception, limits: SessionLimits | None = None) -> Session:
    (tmp_path / "a.py").write_text("x = 1\n")
    return Session(Scripted(iter(lines)), Toolbox(tmp_path, Policy("auto"), None), limits or SessionLimits())


def test_events_come_in_order_and_the_tool_runs_between_them(tmp_path: Path) -> None:
    edit = ToolCall("Edit", {"file_path": "b.py", "new_string": "y\n"})
    events = session(tmp_path, calling(edit, "I write it."), DONE).send("write")
    assert next(events) == AssistantText("I write it.")
    assert next(events) == CallRequested(edit) and not (tmp_path / "b.py").exists()
    assert next(events) == CallFinished(edit, ToolResult("created b.py, 1 line", True))
    assert list(events) == [AssistantText("done"), Stopped("finished")]


def test_an_outcome_holds_conversation_calls_and_reason(tmp_path: Path) -> None:
    outcome = session(tmp_path, calling(READ), DONE).run("read")
    assert outcome.conversation == (
        Message("user", "read"),
        calling(READ),
        Message("tool_result", "    1→x = 1"),
        DONE,
    )
    assert [finished.result.text for finished in outcome.calls] == ["    1→x = 1"]
    assert outcome.stop_reason == "finished"


def test_a_wrong_call_is_answered_and_the_model_goes_on(tmp_path: Path) -> None:
    outcome = session(tmp_path, calling(ToolCall("Write", {"x": "y"})), calling(READ), DONE).run("go")
    assert outcome.stop_reason == "finished" and [finished.result.ok for finished in outcome.calls] == [False, True]


def test_turns_are_bounded(tmp_path: Path) -> None:
    reads = [calling(ToolCall("Read", {"file_path": f"{number}"})) for number in range(9)]
    outcome = session(tmp_path, *reads, limits=SessionLimits(max_turns=4)).run("go")
    assert (outcome.stop_reason, len(outcome.calls), outcome.detail) == ("max_turns", 4, "4 turns are over")


def test_the_same_call_with_the_same_result_is_cut_off(tmp_path: Path) -> None:
    outcome = session(tmp_path, *[calling(READ)] * 9).run("go")
    assert (outcome.stop_reason, len(outcome.calls)) == ("repeated", 3)
    assert outcome.detail == "the same Read call 3 times in a row"


def test_the_same_call_with_another_result_or_with_others_between_is_no_repetition(tmp_path: Path) -> None:
    edits = [
        calling(ToolCall("Edit", {"file_path": "a.py", "old_string": f"x = {n}", "new_string": f"x = {n + 1}"}))
        for n in (1, 2, 3)
    ]
    lines = [turn for edit in edits for turn in (calling(READ), edit)]
    assert session(tmp_path, *lines, DONE).run("go").stop_reason == "finished"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConversationError("the tool call is not closed"), "malformed"),
        (ContextOverflow("300 of 256 tokens"), "context"),
    ],
)
def test_what_the_model_cannot_say_stops_the_run_and_leaves_no_trace(
    tmp_path: Path, error: Exception, reason: str
) -> None:
    live = session(tmp_path, DONE, calling(READ), error, DONE)
    live.run("one")
    outcome = live.run("two")
    assert (outcome.stop_reason, outcome.detail) == (reason, str(error))
    assert outcome.conversation[-1].role == "tool_result", "nothing is put into the model's mouth"
    assert live.run("three").conversation == (Message("user", "one"), DONE, Message("user", "three"), DONE)


def test_a_reply_that_was_cut_is_said_kept_and_not_called_finished(tmp_path: Path) -> None:
    live = session(tmp_path, CutReply("assistant", "half a sen", why="cut off after 9 tokens"), DONE)
    assert list(live.send("one")) == [
        AssistantText("half a sen"),
        Stopped("length", "the reply was cut off after 9 tokens"),
    ]
    assert live.run("go on").conversation == (
        Message("user", "one"),
        Message("assistant", "half a sen"),
        Message("user", "go on"),
        DONE,
    )
    assert {type(message) for message in live.conversation} == {Message}


def test_a_cut_reply_that_is_streamed_is_no_finished_one_either(tmp_path: Path) -> None:
    live = speaking(tmp_path, CutReply("assistant", "ab", why="cut off after 2 tokens"))
    assert list(live.send("go"))[-2:] == [
        AssistantText("ab"),
        Stopped("length", "the reply was cut off after 2 tokens"),
    ]


def test_time_is_bounded(tmp_path: Path) -> None:
    live = session(tmp_path, calling(READ), calling(READ), DONE, limits=SessionLimits(wall_seconds=5))
    ticks = iter([0.0, 1.0, 6.0])
    live.clock = lambda: next(ticks)
    outcome = live.run("go")
    assert (outcome.stop_reason, len(outcome.calls)) == ("time", 1)


def test_an_abandoned_run_can_be_followed_by_another(tmp_path: Path) -> None:
    live = session(tmp_path, calling(READ), DONE)
    events = live.send("one")
    next(events)
    events.close()
    assert live.run("two").conversation == (Message("user", "two"), DONE)


def test_a_system_message_opens_the_conversation_once(tmp_path: Path) -> None:
    live = session(tmp_path, DONE, DONE)
    live.system = "be kind"
    live.run("one")
    assert [message.role for message in live.run("two").conversation] == ["system", *["user", "assistant"] * 2]


def test_a_responder_that_does_not_answer_as_the_assistant_is_a_bug(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="returned a user message"):
        session(tmp_path, Message("user", "x")).run("go")


def unclosed(name: str = "Read", text: str = "") -> MalformedReply:
    return MalformedReply("the tool call is not closed", Message("assistant", text, ToolCall(name)))


def test_a_malformed_call_is_answered_by_its_fault_and_the_run_goes_on(tmp_path: Path) -> None:
    live = session(tmp_path, unclosed(text="I read."), calling(READ), DONE)
    assert list(live.send("go")) == [
        Malformed("the tool call is not closed"),
        AssistantText("I read."),
        CallRequested(READ),
        CallFinished(READ, ToolResult("    1→x = 1", True)),
        AssistantText("done"),
        Stopped("finished"),
    ]
    assert live.conversation[1:3] == (
        Message("assistant", "I read.", ToolCall("Read")),
        Message("tool_result", "error: malformed call: the tool call is not closed"),
    )


def test_three_malformed_calls_in_a_row_end_the_run(tmp_path: Path) -> None:
    outcome = session(tmp_path, unclosed(), calling(READ), *[unclosed()] * 3, DONE).run("go")
    assert (outcome.stop_reason, outcome.malformed, len(outcome.calls)) == ("malformed", 4, 1)
    assert outcome.detail == "the tool call is not closed"
    apart = [line for _ in range(4) for line in (unclosed(), unclosed(), calling(READ))]
    limits = SessionLimits(max_repeats=9)
    assert session(tmp_path, *apart, DONE, limits=limits).run("go").stop_reason == "finished"


def test_a_malformed_call_between_equal_calls_breaks_their_row(tmp_path: Path) -> None:
    lines = [line for _ in range(4) for line in (calling(READ), unclosed())]
    assert session(tmp_path, *lines, DONE).run("go").stop_reason == "finished"


def test_what_an_unfinished_run_had_elided_is_not_missing_in_the_next(tmp_path: Path) -> None:
    reads = [calling(ToolCall("Grep", {"pattern": pattern})) for pattern in ("x", "=", "1")]
    live = session(tmp_path, *reads, calling(READ), DONE, limits=SessionLimits(max_turns=3))
    live.context = ContextWindow(words, limit_tokens=15)
    (tmp_path / "a.py").write_text("x = 1 and more\n")
    assert live.run("one").stop_reason == "max_turns"
    assert ELIDED in [message.content for message in live.responder.heard[-1]]  # type: ignore[attr-defined]
    live.run("two")
    assert live.responder.heard[-1][-1].content == "    1→x = 1 and more"  # type: ignore[attr-defined]


def test_where_the_first_malformed_call_ends_the_run_nothing_is_salvaged(tmp_path: Path) -> None:
    outcome = session(tmp_path, unclosed(), DONE, limits=SessionLimits(max_malformed=1)).run("go")
    assert (outcome.stop_reason, outcome.conversation) == ("malformed", (Message("user", "go"),))


def test_malformed_calls_count_as_turns(tmp_path: Path) -> None:
    limits = SessionLimits(max_turns=2)
    assert session(tmp_path, unclosed(), unclosed(), DONE, limits=limits).run("go").stop_reason == "max_turns"


@dataclass
class Speaking:
    """Streams each line letter by letter."""

    lines: Iterator[Message | Exception]
    closed: int = 0

    def respond(self, conversation: Sequence[Message]) -> Message:
        raise AssertionError("a session listens to what it can hear")

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        try:
            line = next(self.lines)
            if isinstance(line, Exception):
                yield "hm"
                raise line
            yield from line.content
            yield line
        finally:
            self.closed += 1


def speaking(tmp_path: Path, *lines: Message | Exception) -> Session:
    live = session(tmp_path)
    live.responder = Speaking(iter(lines))
    return live


def test_what_is_streamed_comes_in_pieces_and_then_whole(tmp_path: Path) -> None:
    live = speaking(tmp_path, unclosed(text="hm"), calling(READ, "ok"), DONE)
    assert list(live.send("go")) == [
        TextDelta("hm"),
        Malformed("the tool call is not closed"),
        AssistantText("hm"),
        *[TextDelta("o"), TextDelta("k"), AssistantText("ok")],
        *[CallRequested(READ), CallFinished(READ, ToolResult("    1→x = 1", True))],
        *[TextDelta(letter) for letter in "done"],
        *[AssistantText("done"), Stopped("finished")],
    ]
    assert live.responder.closed == 3  # type: ignore[attr-defined]


def test_a_listener_that_leaves_ends_the_speech_and_the_session_can_go_on(tmp_path: Path) -> None:
    live = speaking(tmp_path, Message("assistant", "a long story"), DONE)
    events = live.send("one")
    assert next(events) == TextDelta("a")
    events.close()
    assert live.responder.closed == 1  # type: ignore[attr-defined]
    assert live.run("two").conversation == (Message("user", "two"), DONE)


def test_a_stream_without_a_message_is_a_bug(tmp_path: Path) -> None:
    live = session(tmp_path)
    live.responder = type("Mute", (), {"stream": lambda self, conversation: iter(["x"])})()
    with pytest.raises(ValueError, match="stream ended without a message"):
        live.run("go")


def words(messages: Sequence[Message]) -> int:
    return sum(len(message.content.split()) + 1 for message in messages)


def test_the_model_sees_less_and_the_record_keeps_all(tmp_path: Path) -> None:
    reads = [calling(ToolCall("Grep", {"pattern": pattern})) for pattern in ("x", "=", "1")]
    live = session(tmp_path, *reads, DONE)
    (tmp_path / "a.py").write_text("x = 1 and so on until the limit\n")
    live.context = ContextWindow(words, limit_tokens=24)
    events = list(live.send("go"))
    assert [event for event in events if isinstance(event, Elided)] == [Elided(2)]
    last = live.responder.heard[-1]  # type: ignore[attr-defined]
    whole = "a.py:1:x = 1 and so on until the limit"
    assert [message.content for message in last[2::2]] == [ELIDED, ELIDED, whole]
    assert [message.content for message in live.conversation[2:7:2]] == [whole] * 3


def test_what_the_model_sees_and_remembers_can_be_counted(tmp_path: Path) -> None:
    """Of an elided conversation the status line shows what is left, and of a broken turn nothing."""
    grep = calling(ToolCall("Grep", {"pattern": "x"}))
    live = session(tmp_path, grep, DONE, DONE, grep, grep, KeyError("endpoint"))
    (tmp_path / "a.py").write_text("x = 1 and so on until the limit\n")
    live.context = ContextWindow(words, limit_tokens=24)
    live.run("one")
    assert live.seen == live.remembered == live.conversation
    live.run("two words and many more of them that fill it up")
    assert words(live.seen) == words(live.remembered) <= 24 < words(live.conversation)
    with pytest.raises(KeyError):
        live.run("three")
    assert [message.content for message in live.remembered][-1] == "done" and len(live.seen) > len(live.remembered)
    assert words(live.remembered) <= 24


def test_a_conversation_that_cannot_be_made_to_fit_stops_the_run(tmp_path: Path) -> None:
    live = session(tmp_path, DONE)
    live.context = ContextWindow(words, limit_tokens=3)
    stopped = list(live.send("more words than fit"))[-1]
    assert stopped == Stopped("context", "the conversation has 5 tokens at its shortest, at most 3 fit")
    assert live.run("go").stop_reason == "finished"


def test_text_that_no_tokens_can_hold_never_enters_a_conversation(tmp_path: Path) -> None:
    """JSON and terminals can bring half of a surrogate pair."""
    broken = Message("assistant", "a\ud800", ToolCall("Read", {"file_path": "a\udc80"}))
    live = session(tmp_path, broken, Message("assistant", "b\ud800"), DONE)
    events = list(live.send("go \udcff"))
    assert [event for event in events if isinstance(event, Malformed)] == [
        Malformed("the reply holds half a character")
    ] * 2
    assert live.conversation == (
        Message("user", "go \ufffd"),
        Message("assistant", "a\ufffd", ToolCall("Read", {"file_path": "a\ufffd"})),
        Message("tool_result", "error: malformed call: the reply holds half a character"),
        Message("assistant", "b\ufffd", ToolCall("")),
        Message("tool_result", "error: malformed call: the reply holds half a character"),
        DONE,
    )


def test_what_is_salvaged_is_valid_text_too(tmp_path: Path) -> None:
    fault = MalformedReply("\ud800 is no tool", Message("assistant", "a\ud800", ToolCall("\ud800", {"x": "\ud800"})))
    live = Session(Scripted(iter([fault, DONE])), type("Nothing", (), {"execute": None})())
    assert live.run("go").conversation[1:3] == (
        Message("assistant", "a\ufffd", ToolCall("\ufffd", {"x": "\ufffd"})),
        Message("tool_result", "error: malformed call: \ufffd is no tool"),
    )


def test_a_malformed_call_is_in_the_audit_log(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    path = tmp_path / "log.jsonl"
    with AuditLog(path) as log:
        toolbox = Toolbox(tmp_path / "work", Policy("auto"), None, audit=log)
        Session(Scripted(iter([unclosed("Edit"), DONE])), toolbox).run("go")
    (line,) = (entry for entry in verify(path).entries if entry["kind"] in ("intent", "call"))
    assert (line["kind"], line["tool"], line["decision"], line["ok"]) == ("call", "Edit", "deny", False)
    assert line["rule"] == "malformed: the tool call is not closed"
