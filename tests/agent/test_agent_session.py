"""The loop between model and tools: what enters the conversation, and what ends it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent.policy import Policy
from nanocode.agent.session import (
    AssistantText,
    CallFinished,
    CallRequested,
    ContextOverflow,
    Session,
    SessionLimits,
    Stopped,
)
from nanocode.agent.tools import Toolbox, ToolResult
from nanocode.conversation import (
    ConversationError,
    Message,
    ToolCall,
    assistant_ids,
    check_turns,
    parse_assistant,
    render,
    render_prompt,
)
from nanocode.tokenizer import Tokenizer

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


TEXT = st.text(max_size=12)
CALLS = st.builds(ToolCall, st.sampled_from(["Read", "Grep", "Edit"]), st.dictionaries(TEXT, TEXT, max_size=3))


@given(st.lists(st.builds(calling, CALLS, TEXT), max_size=3), TEXT)
def test_ids_fed_to_a_live_model_equal_those_of_training_turn_by_turn(turns: list[Message], last: str) -> None:
    tokenizer = TOKENIZER
    fed: list[list[int]] = []

    class Model:
        """Generates ids and parses them, as a real one does."""

        script = iter([*turns, Message("assistant", last)])

        def respond(self, conversation: Sequence[Message]) -> Message:
            prompt = render_prompt(conversation, tokenizer)
            generated = assistant_ids(next(self.script), tokenizer)
            fed.append(prompt + generated)
            return parse_assistant(generated, tokenizer)

    class Echo:
        """Answers with the call's own text, control characters and all."""

        def execute(self, call: ToolCall) -> ToolResult:
            return ToolResult(f"error: <|tool_call_start|>{call}", ok=False)

    outcome = Session(Model(), Echo(), SessionLimits(max_repeats=9)).run("go <|assistant_start|>")
    check_turns(outcome.conversation)
    trained = render(outcome.conversation, tokenizer).ids
    assert outcome.stop_reason == "finished" and fed[-1] == trained
    assert all(trained[: len(ids)] == ids for ids in fed)


TOKENIZER = Tokenizer.train(["a small text"], 268)
