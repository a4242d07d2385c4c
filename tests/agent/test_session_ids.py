"""What a live session feeds the model equals, id for id, what training renders, whatever happens in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.agent.context import ELIDED, ContextWindow
from nanocode.agent.results import ToolResult, capped
from nanocode.agent.session import Elided, Malformed, Session, SessionLimits, Stopped
from nanocode.conversation import Message, ToolCall, assistant_ids, parse, render, render_prompt
from nanocode.inference.cut import parse_reply
from nanocode.tokenizer import SPECIAL_TOKENS, Tokenizer

TOKENIZER = Tokenizer.train(["a small text"], 268)
TEXT = st.lists(st.text(max_size=12) | st.sampled_from(SPECIAL_TOKENS), max_size=3).map("".join)
CALLS = st.builds(ToolCall, st.sampled_from(["Read", "Bash", ""]) | TEXT, st.dictionaries(TEXT, TEXT, max_size=2))
ANSWERS = st.builds(Message, st.just("assistant"), TEXT, CALLS).map(lambda m: assistant_ids(m, TOKENIZER))
# Ids that no renderer made: control tokens anywhere, bytes that are no UTF-8, calls that never close.
GARBAGE = st.lists(st.integers(0, 267), max_size=12)
RESULTS = st.one_of(
    st.builds(ToolResult, TEXT, st.just(True)),
    st.builds(ToolResult, TEXT.map("error: {}".format), st.just(False)),
    st.just(ToolResult("error: the user said no", False)),
    st.builds(ToolResult, st.text(min_size=70, max_size=300).map(lambda text: capped(text, 60)), st.just(True)),
)


@dataclass
class Model:
    """Generates the ids of its script and parses them, as a real one does; remembers what it was fed."""

    replies: Iterator[list[int]]
    fed: list[list[int]] = field(default_factory=list)
    records: list[tuple[Message, ...]] = field(default_factory=list)
    said: list[list[int]] = field(default_factory=list)
    session: Session | None = None

    def respond(self, conversation: Sequence[Message]) -> Message:
        assert self.session is not None
        self.records.append(self.session.conversation)
        self.fed.append(render_prompt(conversation, TOKENIZER))
        self.said.append(next(self.replies, assistant_ids(Message("assistant", "done"), TOKENIZER)))
        return parse_reply(self.said[-1], TOKENIZER)


@dataclass
class Answers:
    """Tools that answer with what the test has drawn."""

    results: Iterator[ToolResult]

    def execute(self, call: ToolCall) -> ToolResult:
        return next(self.results, ToolResult(f"error: <|tool_call_start|>{call.name}", ok=False))


def live(model: Model, results: list[ToolResult], system: str | None, context: ContextWindow | None) -> Session:
    limits = SessionLimits(max_turns=6, max_repeats=9)
    model.session = Session(model, Answers(iter(results)), limits, system=system, context=context)
    return model.session


SCRIPT = {
    "users": st.lists(TEXT, min_size=1, max_size=3),
    "replies": st.lists(ANSWERS | GARBAGE, max_size=10),
    "results": st.lists(RESULTS, max_size=10),
    "system": st.none() | TEXT,
}


@settings(max_examples=50)
@given(**SCRIPT)
def test_a_live_session_feeds_the_model_what_training_renders(
    users: list[str], replies: list[list[int]], results: list[ToolResult], system: str | None
) -> None:
    model = Model(iter(replies))
    session = live(model, results, system, None)
    stops = [session.run(user).stop_reason for user in users]
    assert set(stops) <= {"finished", "length", "malformed", "max_turns"}
    for fed, record in zip(model.fed, model.records, strict=True):
        assert fed == [*render(record, TOKENIZER).ids, TOKENIZER.special["<|assistant_start|>"]]
    if stops[-1] in ("finished", "length"):
        trained = render(session.conversation, TOKENIZER).ids
        assert all(
            trained[: len(fed)] == fed
            for fed, record in zip(model.fed, model.records, strict=True)
            if record == session.conversation[: len(record)]
        )


@settings(max_examples=70)
@given(**SCRIPT, limit=st.integers(60, 260))
def test_after_elision_the_model_is_fed_a_whole_conversation_that_fits(
    users: list[str], replies: list[list[int]], results: list[ToolResult], system: str | None, limit: int
) -> None:
    model = Model(iter(replies))
    window = ContextWindow(lambda messages: len(render_prompt(messages, TOKENIZER)), limit)
    session = live(model, results, system, window)
    events = [event for user in users for event in session.send(user)]
    assert {event.reason for event in events if isinstance(event, Stopped)} <= {
        *("finished", "length", "malformed", "max_turns", "context")
    }
    for fed, record in zip(model.fed, model.records, strict=True):
        assert len(fed) <= limit
        shown = parse(fed[:-1], TOKENIZER)
        assert render(shown, TOKENIZER).ids == fed[:-1]
        assert_is_view(shown, merged(record))


def merged(record: Sequence[Message]) -> list[Message]:
    """Parsed ids know no system message: it stands in the first user's."""
    if record[0].role != "system":
        return list(record)
    return [Message("user", f"{record[0].content}\n\n{record[1].content}"), *record[2:]]


def assert_is_view(shown: list[Message], record: list[Message]) -> None:
    """Whole exchanges are missing at the front, and the oldest results are markers; all else is the record's."""
    exchanges = sum(message.role == "user" for message in shown)
    starts = [place for place, message in enumerate(record) if message.role == "user"]
    kept = record[starts[-exchanges] :]
    assert [message.role for message in shown] == [message.role for message in kept]
    assert shown[0].content.endswith(kept[0].content), "a system message moves to the first user's that is left"
    replaced = [seen != whole for seen, whole in zip(shown[1:], kept[1:], strict=True)]
    assert all(
        seen == Message("tool_result", ELIDED) for seen, whole in zip(shown[1:], kept[1:], strict=True) if seen != whole
    )
    long = [
        hidden
        for hidden, whole in zip(replaced, kept[1:], strict=True)
        if whole.role == "tool_result" and len(whole.content) > len(ELIDED)
    ]
    assert long == sorted(long, reverse=True), "the oldest results go first"


def test_a_prompt_extends_the_one_before_until_something_is_elided() -> None:
    """So the cache of keys and values of a conversation lives across turns, and elision is rare."""
    reads = [assistant_ids(Message("assistant", "", ToolCall("Read", {"n": str(n)})), TOKENIZER) for n in range(18)]
    model = Model(iter(reads))
    window = ContextWindow(lambda messages: len(render_prompt(messages, TOKENIZER)), 900)
    session = live(model, [ToolResult("x" * 80, True)] * 18, None, window)
    session.limits = SessionLimits(max_turns=40, max_repeats=99)
    elided = [event for event in session.send("go") if isinstance(event, Elided)]
    broken = [turn for turn, (before, after) in enumerate(pairwise(model.fed)) if after[: len(before)] != before]
    assert len(broken) == len(elided) >= 3
    assert min(later - earlier for earlier, later in pairwise(broken)) >= 3
    assert all(event.results >= 3 for event in elided)


@given(ids=st.lists(st.integers(0, 267), max_size=24))
def test_a_malformed_reply_is_answered_and_the_session_goes_on(ids: list[int]) -> None:
    model = Model(iter([ids]))
    session = live(model, [], None, None)
    events = list(session.send("go"))
    faults = [event.detail for event in events if isinstance(event, Malformed)]
    whole = faults or ids[-1:] == [TOKENIZER.special["<|assistant_end|>"]]
    assert events[-1] == Stopped("finished") if whole else events[-1].reason == "length"
    if faults:
        assert session.conversation[2] == Message("tool_result", f"error: malformed call: {faults[0]}")
        assert len(model.fed) == 2 and session.conversation[-1].content == "done"
