"""What a person sees and answers."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from rich.console import Console

from nanocode.agent.policy import Policy
from nanocode.agent.session import AssistantText, CallFinished, CallRequested, Session, Stopped
from nanocode.agent.terminal import Asker, Screen, Terminal, clipped, diff_lines, visible
from nanocode.agent.tools import Toolbox, ToolResult
from nanocode.conversation import Message, ToolCall

EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"})


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    (tmp_path / "a.py").write_text("x = 1\n")
    console = Console(file=io.StringIO(), width=100, highlight=False)
    return Screen(console, Toolbox(tmp_path, Policy("auto"), None))


def seen(screen: Screen) -> str:
    file = screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_an_edit_is_drawn_as_a_diff_before_it_happens(screen: Screen) -> None:
    screen.draw(CallRequested(EDIT))
    assert seen(screen) == "Edit(file_path='a.py')\n@@ -1 +1 @@\n-x = 1\n+x = 2\n"


def test_an_edit_that_would_fail_is_drawn_with_its_arguments(screen: Screen) -> None:
    screen.draw(CallRequested(ToolCall("Edit", {"file_path": "a.py", "old_string": "no", "new_string": "y"})))
    assert seen(screen) == "Edit(file_path='a.py', old_string='no', new_string='y')\n"


def test_results_are_clipped_and_stops_explained(screen: Screen) -> None:
    screen.draw(CallFinished(EDIT, ToolResult("\n".join(str(number) for number in range(20)), True)))
    screen.draw(Stopped("max_turns", "16 turns are over"))
    screen.draw(Stopped("finished"))
    assert seen(screen).splitlines()[-3:] == ["11", "... 8 more lines", "stopped (max_turns): 16 turns are over"]


def test_text_is_neither_markup_nor_terminal_control(screen: Screen) -> None:
    # A file can hold escape sequences that rewrite what the user is about to allow.
    screen.draw(AssistantText("[red]x[/red] \x1b[2J\x1b]0;title\x07 \u202egnp.exe\r"))
    assert seen(screen) == "[red]x[/red] \\x1b[2J\\x1b]0;title\\x07 \\x202egnp.exe\\x0d\n"
    assert visible("tab\tnewline\n é→") == "tab\tnewline\n é→"


def test_diffs_are_short() -> None:
    before = "".join(f"{number}\n" for number in range(50))
    assert diff_lines(before, before.replace("25\n", "x\n")) == [
        "@@ -24,5 +24,5 @@",
        " 23",
        " 24",
        "-25",
        "+x",
        " 26",
        " 27",
    ]
    assert clipped(["a", "b", "c"], 1) == ["a", "... 2 more lines"]


@pytest.mark.parametrize(
    ("answer", "allowed"), [("y", True), ("YES ", True), ("", False), ("n", False), ("yeah", False)]
)
def test_only_an_explicit_yes_allows(answer: str, allowed: bool) -> None:
    # ENTER must not be a yes: it is pressed by habit.
    assert Asker(lambda question: answer)(EDIT) is allowed


def test_always_holds_for_that_tool_only() -> None:
    answers = iter(["always", "n"])
    asker = Asker(lambda question: next(answers))
    assert [asker(EDIT), asker(EDIT), asker(ToolCall("Bash", {"command": "x"}))] == [True, True, False]


@pytest.mark.parametrize("interruption", [EOFError, KeyboardInterrupt])
def test_no_answer_is_a_no(interruption: type[BaseException]) -> None:
    def ask(question: str) -> str:
        raise interruption

    assert Asker(ask)(EDIT) is False


class Editor:
    """Makes one edit for every prompt, then says so."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        last = conversation[-1]
        if last.content == "stop":
            raise KeyboardInterrupt
        if last.role == "user":
            return Message("assistant", "", EDIT)
        return Message("assistant", f"result: {last.content}")


def reader(*lines: str) -> Callable[[], str]:
    remaining = iter(lines)

    def read() -> str:
        try:
            return next(remaining)
        except StopIteration:
            raise EOFError from None

    return read


def converse(screen: Screen, *lines: str) -> str:
    Terminal(screen, lambda: Session(Editor(), screen.toolbox), reader(*lines)).run()
    return seen(screen)


def test_a_conversation_with_commands(screen: Screen) -> None:
    text = converse(
        screen, "", "change it", "/undo", "/undo", "/show", "/clear", "/show", "/help", "/nope", "/quit", "never"
    )
    assert "result: edited a.py, line 1" in text and "restored a.py" in text and "nothing to undo" in text
    assert text.count("[user] change it") == 1, "/clear forgets"
    assert "/mode [MODE]" in text and "unknown command /nope" in text and "never" not in text
    assert (screen.toolbox.workspace / "a.py").read_text() == "x = 1\n"


def test_the_mode_can_be_changed(screen: Screen) -> None:
    text = converse(screen, "/mode plan", "change it", "/mode yolo", "/mode")
    assert "error: not allowed: mode plan" in text and "unknown mode yolo" in text and text.endswith("mode plan\n")


def test_an_interruption_ends_the_answer_not_the_terminal(screen: Screen) -> None:
    assert "result: edited" in converse(screen, "stop", "change it").split("interrupted")[1]


def test_undo_of_a_file_changed_since_says_so(screen: Screen) -> None:
    converse(screen, "change it")
    (screen.toolbox.workspace / "a.py").write_text("mine\n")
    assert "cannot undo: a.py changed since that edit" in converse(screen, "/undo")
