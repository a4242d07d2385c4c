"""`nanocode chat`: what is printed, what is kept, and how it ends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from typer.testing import CliRunner

from nanocode.agent.context import ContextWindow
from nanocode.cli import app, chat, model_loading
from nanocode.cli.chat import Talk
from nanocode.cli.context import Settings
from nanocode.conversation import ConversationError, Message, ToolCall
from nanocode.inference.cut import CutReply


class Echo:
    """Says how many messages it saw and the last one; calls a tool on `call`, breaks off on `break`."""

    def __init__(self) -> None:
        self.seen: list[tuple[Message, ...]] = []

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        self.seen.append(tuple(conversation))
        last = conversation[-1].content
        yield f"{len(conversation)}: "
        if last == "break":
            raise ConversationError("the tool call\nis not closed")
        if last == "stop":
            raise KeyboardInterrupt
        yield last
        if last == "cut":
            yield CutReply("assistant", f"{len(conversation)}: cut", why="cut off after 7 tokens")
            return
        yield Message("assistant", f"{len(conversation)}: {last}", ToolCall("Read") if last == "call" else None)


@pytest.fixture
def echo() -> Echo:
    return Echo()


def make_talk(echo: Echo, limit_tokens: int = 1_000, system: str | None = None) -> Talk:
    """Every character counts as a token."""
    window = lambda: ContextWindow(lambda said: sum(len(each.content) for each in said), limit_tokens)  # noqa: E731
    return Talk(echo, window, system)


@pytest.fixture
def invoke(monkeypatch: pytest.MonkeyPatch, echo: Echo):
    loaded = type("Loaded", (), {"found": type("Found", (), {"label": "nano@1"})})
    monkeypatch.setattr(model_loading, "load_named", lambda model, store: loaded)
    monkeypatch.setattr(chat, "_talk", lambda loaded, sampling, tokens, system: make_talk(echo, system=system))
    return lambda *arguments, stdin="": CliRunner().invoke(app, ["chat", *arguments], input=stdin, obj=Settings())


def test_one_thing_is_said_and_the_reply_is_all_that_is_printed(invoke) -> None:
    result = invoke("nano", "-p", "hello")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "1: hello\n", "")


def test_a_reply_that_was_cut_off_is_printed_and_says_so_on_stderr(invoke) -> None:
    result = invoke("nano", "-p", "cut")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "1: cut\n", "(cut off after 7 tokens)\n")


def test_what_is_piped_in_is_one_message(invoke, echo: Echo) -> None:
    result = invoke("nano", "--system", "be brief", stdin="two\nlines\n")
    assert (result.exit_code, result.stdout) == (0, "2: two\nlines\n\n")
    assert echo.seen == [(Message("system", "be brief"), Message("user", "two\nlines\n"))]


def test_a_reply_that_is_none_is_said_on_stderr_and_exits_with_1(invoke) -> None:
    result = invoke("nano", "-p", "break")
    assert (result.exit_code, result.stdout) == (1, "1: \n")
    assert result.stderr == "no reply: the tool call is not closed\n"


@pytest.mark.parametrize(
    "arguments", [[], ["nano", "-p", " "], ["nano"], ["nano", "-p", "x", "--top-p", "0"], ["nano", "--seed", "-1"]]
)
def test_wrong_use_exits_with_2(invoke, echo: Echo, arguments: list[str]) -> None:
    assert invoke(*arguments).exit_code == 2 and echo.seen == []


def test_a_conversation_goes_on_from_what_was_said(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    talk = make_talk(echo)
    assert [talk.say(text) for text in ("a", "break", "call", "b")] == [True, False, True, True]
    assert [message.content for message in echo.seen[-1]] == ["a", "1: a", "call", "3: call", "b"]
    assert all(message.tool_call is None for message in echo.seen[-1])
    assert "it would call Read now" in capsys.readouterr().err
    talk.clear()
    talk.say("c")
    assert echo.seen[-1] == (Message("user", "c"),)


def test_ctrl_c_keeps_what_was_said_so_far(echo: Echo) -> None:
    talk = make_talk(echo)
    assert talk.say("stop") and talk.say("b")
    assert [message.content for message in echo.seen[-1]] == ["stop", "1: ", "b"]


def test_the_oldest_exchanges_make_room(echo: Echo, capsys: pytest.CaptureFixture[str]) -> None:
    talk = make_talk(echo, limit_tokens=60)
    for text in ("first " * 3, "second " * 3, "third " * 3):
        assert talk.say(text)
    assert [message.content.strip() for message in echo.seen[-1]][-1] == "third third third"
    assert not any("first" in message.content for message in echo.seen[-1])
    assert not talk.say("x" * 100)
    assert "no reply: " in capsys.readouterr().err


def test_the_end_of_input_ends_it_and_clear_clears(echo: Echo) -> None:
    said = iter(["a", "  ", "/clear", KeyboardInterrupt, "b", EOFError])

    def read() -> str:
        what = next(said)
        if isinstance(what, type):
            raise what
        return what

    chat._converse(make_talk(echo), read)
    assert echo.seen == [(Message("user", "a"),), (Message("user", "b"),)]
