from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from nanocode.conversation import ConversationError, Message, assistant_ids
from nanocode.evaluation.lockstep import run_lockstep
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow
from nanocode.tokenizer import Tokenizer

SESSIONS = 6
TURNS = [1, 4, 2, 4, 3, 1]
SETTINGS: dict[str, Any] = {"temperature": 0.7, "max_new_tokens": 9, "seed": 5}


@pytest.fixture
def echo(tokenizer: Tokenizer) -> Callable[[list[Message], int], list[int]]:
    """Replies with the number of messages, what was said last and the stream."""
    return lambda conversation, stream: assistant_ids(
        Message("assistant", f"{len(conversation)} {conversation[-1].content} {stream}"), tokenizer
    )


def talk(delays: list[float]) -> Callable[[int, Any], list[str]]:
    """A session that asks TURNS[index] times, each time after its own delay."""

    def run(index: int, responder: Any) -> list[str]:
        conversation = []
        for turn in range(TURNS[index]):
            time.sleep(delays[index])
            conversation.append(Message("user", f"session {index} turn {turn}"))
            conversation.append(responder.respond(conversation))
        return [message.content for message in conversation[1::2]]

    return run


EXPECTED = [
    [f"{2 * turn + 1} session {index} turn {turn} {index}" for turn in range(TURNS[index])] for index in range(SESSIONS)
]


@pytest.mark.parametrize("seed", range(4))
def test_results_do_not_depend_on_which_thread_is_first(scripted: Any, echo: Any, within: Any, seed: int) -> None:
    engine = scripted(echo)
    delays = random.Random(seed).choices([0.0, 0.001, 0.01, 0.02], k=SESSIONS)
    assert within(10, lambda: run_lockstep(engine, SESSIONS, talk(delays), **SETTINGS)) == EXPECTED
    assert engine.batches == [[index for index in range(SESSIONS) if TURNS[index] > turn] for turn in range(4)]
    assert engine.settings == [SETTINGS] * 4


def test_one_session_is_a_batch_of_one(scripted: Any, echo: Any, within: Any) -> None:
    engine = scripted(echo)
    within(10, lambda: run_lockstep(engine, 1, talk([0.0]), **SETTINGS))
    assert engine.batches == [[0]]


def test_a_failure_of_the_engine_reaches_every_session(scripted: Any, within: Any) -> None:
    def fail(conversation: list[Message], stream: int) -> list[int]:
        raise RuntimeError("the device is gone")

    told: list[int] = []

    def run(index: int, responder: Any) -> None:
        try:
            responder.respond([Message("user", "hello")])
        except RuntimeError:
            told.append(index)
            raise

    with pytest.raises(RuntimeError, match="the device is gone"):
        within(10, lambda: run_lockstep(scripted(fail), SESSIONS, run, **SETTINGS))
    assert sorted(told) == list(range(SESSIONS))


def test_a_session_that_asks_after_the_failure_is_told_too(scripted: Any, within: Any) -> None:
    def fail(conversation: list[Message], stream: int) -> list[int]:
        raise RuntimeError("the device is gone")

    def stubborn(index: int, responder: Any) -> int:
        refused = 0
        for _ in range(3):
            try:
                responder.respond([Message("user", "hello")])
            except RuntimeError:
                refused += 1
        return refused

    assert within(10, lambda: run_lockstep(scripted(fail), 3, stubborn, **SETTINGS)) == [3, 3, 3]


def test_a_session_that_fails_by_itself_does_not_hold_up_the_others(scripted: Any, echo: Any, within: Any) -> None:
    finished = threading.Semaphore(0)
    talking = talk([0.0] * SESSIONS)

    def run(index: int, responder: Any) -> Any:
        if index == 2:
            raise KeyError("a session's own fault")
        result = talking(index, responder)
        finished.release()
        return result

    with pytest.raises(KeyError, match="a session's own fault"):
        within(10, lambda: run_lockstep(scripted(echo), SESSIONS, run, **SETTINGS))
    assert sum(finished.acquire(blocking=False) for _ in range(SESSIONS)) == SESSIONS - 1


def test_a_session_that_never_asks_does_not_hold_up_the_others(scripted: Any, echo: Any, within: Any) -> None:
    talking = talk([0.0] * SESSIONS)

    def run(index: int, responder: Any) -> Any:
        return "nothing to say" if index == 3 else talking(index, responder)

    results = within(10, lambda: run_lockstep(scripted(echo), SESSIONS, run, **SETTINGS))
    assert results == [*EXPECTED[:3], "nothing to say", *EXPECTED[4:]]


def test_a_session_that_ends_while_the_others_wait_lets_them_go_on(scripted: Any, echo: Any, within: Any) -> None:
    """Nobody is left to arrive last, so leaving itself must start the batch."""
    engine = scripted(echo)
    talking = talk([0.0] * SESSIONS)

    def run(index: int, responder: Any) -> Any:
        result = talking(index, responder)
        if TURNS[index] == 1:
            time.sleep(0.1)
        return result

    assert within(10, lambda: run_lockstep(engine, SESSIONS, run, **SETTINGS)) == EXPECTED


def outcomes(index: int, responder: Any) -> str:
    try:
        return responder.respond([Message("user", "long " * 200 if index == 1 else "hello")]).content
    except (ContextOverflow, ConversationError) as error:
        return type(error).__name__


def test_a_conversation_too_long_for_the_context_stops_alone(scripted: Any, echo: Any, within: Any) -> None:
    engine = scripted(echo, context_tokens=100)
    assert within(10, lambda: run_lockstep(engine, 3, outcomes, **SETTINGS)) == [
        *("1 hello 0", "ContextOverflow", "1 hello 2"),
    ]
    assert engine.batches == [[0, 2]]


def test_malformed_output_stops_one_session_alone(scripted: Any, echo: Any, tokenizer: Tokenizer, within: Any) -> None:
    def reply(conversation: list[Message], stream: int) -> list[int]:
        return [tokenizer.special["<|tool_call_start|>"]] if stream == 2 else echo(conversation[:1], stream)

    results = within(10, lambda: run_lockstep(scripted(reply), 3, lambda i, r: outcomes(-i, r), **SETTINGS))
    assert results == ["1 hello 0", "1 hello 1", "MalformedReply"]


def test_a_reply_that_the_bound_cut_is_told_from_one_that_ended(scripted: Any, echo: Any, within: Any) -> None:
    def cut_in_two(conversation: list[Message], stream: int) -> list[int]:
        ids: list[int] = echo(conversation, stream)
        return ids[:3] if stream == 1 else ids

    def run(index: int, responder: Any) -> tuple[bool, str]:
        reply = responder.respond([Message("user", "hello")])
        return isinstance(reply, CutReply), reply.content

    found = within(10, lambda: run_lockstep(scripted(cut_in_two), 3, run, **SETTINGS))
    assert [cut for cut, _ in found] == [False, True, False] and "1 hello 1".startswith(found[1][1])
