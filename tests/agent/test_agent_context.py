"""What makes room, in which order, and what never does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.agent.context import ELIDED, ContextWindow, View
from nanocode.conversation import Message, ToolCall, check_turns, render_prompt
from nanocode.inference.overflow import ContextOverflow
from nanocode.tokenizer import Tokenizer

CALL = Message("assistant", "", ToolCall("Read", {"file_path": "a"}))


def size(messages: Sequence[Message]) -> int:
    return sum(len(message.content) + 10 for message in messages)


def exchange(text: str, *results: str, done: bool = True) -> list[Message]:
    turns = [turn for result in results for turn in (CALL, Message("tool_result", result))]
    return [Message("user", text), *turns, *([Message("assistant", "done")] if done else [])]


def contents(view: View) -> list[str]:
    return [message.content for message in view.messages if message.role in ("user", "tool_result")]


A, B, C = (letter * 40 for letter in "abc")


def test_what_fits_is_shown_whole() -> None:
    messages = exchange("one", A, B) + exchange("two", C, done=False)
    window = ContextWindow(size, size(messages))
    assert window.view(messages) == View(tuple(messages), 0, 0)


def test_the_oldest_results_go_first_and_the_newest_stays() -> None:
    messages = exchange("one", A, B) + exchange("two", C, done=False)
    view = ContextWindow(size, size(messages) - 1).view(messages)
    assert contents(view) == ["one", ELIDED, ELIDED, "two", C] and (view.results, view.exchanges) == (2, 0)


def test_then_the_oldest_exchanges_go() -> None:
    messages = exchange("o" * 80, A) + exchange("t" * 80, B) + exchange("three", C, done=False)
    view = ContextWindow(size, 220).view(messages)
    assert contents(view) == ["three", C] and (view.results, view.exchanges) == (2, 2)


def test_a_system_message_stays_when_exchanges_go() -> None:
    messages = [Message("system", "be kind"), *exchange("o" * 80), *exchange("two", A, done=False)]
    view = ContextWindow(size, 110).view(messages)
    assert [message.content for message in view.messages] == ["be kind", "two", "", A]


def test_the_newest_result_goes_last_and_the_users_message_never() -> None:
    messages = exchange("one", A) + exchange("two", B, "c" * 400, done=False)
    assert contents(ContextWindow(size, 150).view(messages)) == ["two", ELIDED, ELIDED]
    with pytest.raises(ContextOverflow, match="has 83 tokens at its shortest, at most 82 fit"):
        ContextWindow(size, 82).view(messages)
    with pytest.raises(ContextOverflow, match="has 210 tokens at its shortest"):
        ContextWindow(size, 100).view([Message("user", "x" * 200)])


def test_a_result_shorter_than_the_marker_is_left_alone() -> None:
    messages = exchange("one", "ok", A) + exchange("two", C, done=False)
    view = ContextWindow(size, size(messages) - 1).view(messages)
    assert contents(view) == ["one", "ok", ELIDED, "two", C] and view.results == 1


def test_what_was_left_out_stays_out_and_is_told_once() -> None:
    messages = exchange("one", A, B) + exchange("two", C, done=False)
    window = ContextWindow(size, size(messages) - 1)
    first = window.view(messages)
    again = window.view(messages)
    assert again == View(first.messages, 0, 0)
    longer = [*messages, Message("assistant", "done"), Message("user", "three")]
    assert window.view(longer).messages[: len(first.messages)] == first.messages


def test_what_is_no_longer_in_the_record_is_forgotten() -> None:
    finished, running = exchange("one", A), exchange("two", B, C, A, done=False)
    window = ContextWindow(size, size(finished + running) - 1)
    assert ELIDED in contents(window.view(finished + running))[3:]
    window.rewind(finished)
    fresh = exchange("three", B, done=False)
    assert contents(window.view(finished + fresh)) == ["one", ELIDED, "three", B]
    window.rewind([])
    assert contents(window.view(exchange("four", A, done=False))) == ["four", A]


MESSAGES = st.lists(
    st.builds(
        lambda text, results: exchange(text, *results),
        st.text("u", max_size=60),
        st.lists(st.text("r", max_size=60), max_size=4),
    ),
    min_size=1,
    max_size=4,
).map(lambda exchanges: [message for turns in exchanges for message in turns][:-1])


@given(messages=MESSAGES, limit=st.integers(20, 400))
def test_a_view_fits_keeps_the_grammar_and_the_last_request(messages: list[Message], limit: int) -> None:
    try:
        view = ContextWindow(size, limit).view(messages)
    except ContextOverflow:
        request = [message for message in messages if message.role == "user"][-1]
        assert size([request]) + 20 > limit or messages[-1].role == "tool_result"
        return
    check_turns(view.messages)
    assert size(view.messages) <= limit
    last = max(place for place, message in enumerate(messages) if message.role == "user")
    assert messages[last] in view.messages
    assert [message.role for message in view.messages[-len(messages[last:]) :]] == [m.role for m in messages[last:]]


@pytest.mark.parametrize(("context", "reply", "limit"), [(256, None, 192), (256, 56, 200)])
def test_a_models_window_leaves_room_for_its_reply(
    tokenizer: Tokenizer, context: int, reply: int | None, limit: int
) -> None:
    window = ContextWindow.of_model(tokenizer, context, reply)
    messages = [Message("user", "hello")]
    assert window.limit_tokens == limit and window.count(messages) == len(render_prompt(messages, tokenizer))


@pytest.mark.parametrize("reply", [0, 256, 300])
def test_a_reply_that_leaves_no_room_is_refused(tokenizer: Tokenizer, reply: int) -> None:
    with pytest.raises(ValueError, match=f"a reply of {reply} tokens leaves no room in a context of 256"):
        ContextWindow.of_model(tokenizer, 256, reply)
