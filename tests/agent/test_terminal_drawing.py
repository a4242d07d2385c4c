"""What a person sees of a session, and what he is asked."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from nanocode.agent.policy import Policy
from nanocode.agent.session import AssistantText, CallFinished, CallRequested, Elided, Malformed, Stopped, TextDelta
from nanocode.agent.terminal_asking import Asker
from nanocode.agent.terminal_drawing import SHOWN_COMMAND_LINES, SHOWN_DIFF_ROWS, Screen
from nanocode.agent.terminal_live import Animated
from nanocode.agent.tools import Toolbox, ToolResult
from nanocode.conversation import ToolCall

EDIT = ToolCall("Edit", {"file_path": "a.py", "old_string": "x = 1", "new_string": "x = 2"})
LONG = ToolCall("Bash", {"command": "\n".join(f"echo {number}" for number in range(SHOWN_COMMAND_LINES + 5))})


def make_screen(folder: Path, colour: bool = False) -> Screen:
    (folder / "a.py").write_text("x = 1\n")
    system = "standard" if colour else None
    console = Console(
        file=io.StringIO(),
        width=60,
        height=12,
        highlight=False,
        force_terminal=colour,
        color_system=system,
        _environ={"TERM": "xterm"},
    )
    return Screen(console, Toolbox(folder, Policy("auto"), None))


@pytest.fixture
def screen(tmp_path: Path) -> Screen:
    return make_screen(tmp_path)


def seen(screen: Screen) -> str:
    file = screen.console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_an_edit_is_drawn_as_a_diff_with_its_file_and_lines_before_it_happens(screen: Screen) -> None:
    screen.draw(CallRequested(EDIT))
    assert seen(screen) == "Edit a.py\n  1 - x = 1\n  1 + x = 2\n"


def test_a_diff_is_coloured(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, colour=True)
    screen.call(EDIT)
    assert "\x1b[31m  1 - x = 1\x1b[0m" in seen(screen) and "\x1b[32m  1 + x = 2\x1b[0m" in seen(screen)


def test_an_edit_that_would_fail_is_drawn_with_its_arguments(screen: Screen) -> None:
    screen.draw(CallRequested(ToolCall("Edit", {"file_path": "a.py", "old_string": "no", "new_string": "y"})))
    assert seen(screen) == "Edit(file_path='a.py', old_string='no', new_string='y')\n"


def test_results_lose_their_middle_and_stops_are_explained(screen: Screen) -> None:
    screen.draw(CallFinished(EDIT, ToolResult("\n".join(str(number) for number in range(1, 31)), True)))
    screen.draw(Stopped("max_turns", "16 turns are over"))
    screen.draw(Stopped("finished"))
    lines = seen(screen).splitlines()
    assert lines[:8] == list("12345678") and lines[8] == "... 18 lines left out ..."
    assert lines[9:] == ["27", "28", "29", "30", "stopped (max_turns): 16 turns are over"]


def test_text_is_neither_markup_nor_terminal_control(screen: Screen) -> None:
    # A file can hold escape sequences that rewrite what the user is about to allow.
    screen.draw(AssistantText("[red]x[/red] \x1b[2J\x1b]0;title\x07 \u202egnp.exe\r"))
    screen.draw(CallRequested(ToolCall("B\x1b", {"\x1b": "\x9b"})))
    screen.draw(CallRequested(ToolCall("Bash", {"command": "echo \x1b[8m hidden"})))
    assert seen(screen) == (
        "[red]x[/red] \\x1b[2J\\x1b]0;title\\x07 \\u202egnp.exe\\x0d\n"
        "B\\x1b(\\x1b='\\x9b')\nBash\n  echo \\x1b[8m hidden\n"
    )


def test_a_pipe_gets_long_lines_whole(screen: Screen) -> None:
    screen.draw(AssistantText("word " * 40))
    screen.draw(CallFinished(EDIT, ToolResult("word " * 40, True)))
    assert seen(screen) == f"{'word ' * 40}\n{'word ' * 40}\n"


def test_text_that_was_streamed_is_not_said_twice(screen: Screen) -> None:
    for event in (TextDelta("one "), TextDelta("two"), AssistantText("one two"), AssistantText("three")):
        screen.draw(event)
    for malformed in (TextDelta("four"), Malformed("no such token"), AssistantText("four")):
        screen.draw(malformed)
    assert seen(screen) == "one two\nthree\nfour\nmalformed reply: no such token\n"


def test_what_the_model_no_longer_sees_is_said(screen: Screen) -> None:
    screen.draw(Elided(2, 1))
    assert seen(screen).endswith("the model no longer sees 2 old tool results and 1 old exchange\n")


def test_an_answer_in_pieces_is_drawn_as_the_whole_is_once_and_in_order(tmp_path: Path) -> None:
    answer = (
        "# Plan\n\nFirst **this**.\n\n" + "".join(f"- item {number}\n" for number in range(30)) + "\n```\na\n```\nEnd."
    )
    (tmp_path / "whole").mkdir()
    whole, pieces = make_screen(tmp_path / "whole", colour=True), make_screen(tmp_path, colour=True)
    whole.view.feed(answer)
    for at in range(0, len(answer), 7):
        pieces.draw(TextDelta(answer[at : at + 7]))
    for screen in (whole, pieces):
        screen.draw(Stopped("finished"))
    drawn = [[line for line in seen(screen).splitlines() if line.strip()] for screen in (whole, pieces)]
    assert drawn[0] == drawn[1] and "item 29" in seen(pieces)


def on_a_screen(written: str) -> list[str]:
    """The rows that a terminal without bottom shows after what was written: carriage returns, erased and upper rows."""
    rows, row, column = [""], 0, 0
    for sequence, text in re.findall(r"(\x1b\[[0-9;?]*[a-zA-Z]|[\r\n])|([^\x1b\r\n]+)", written):
        if text:
            rows[row] = rows[row][:column].ljust(column) + text + rows[row][column + len(text) :]
            column += len(text)
        elif sequence == "\r":
            column = 0
        elif sequence == "\n":
            row, column = row + 1, 0
            rows += [""] * (row == len(rows))
        elif sequence.endswith("A"):
            row -= int(sequence[2:-1])
            assert row >= 0, "above the first row"
        elif sequence.endswith("K"):
            rows[row] = ""
    return [line.rstrip() for line in rows if line.strip()]


def test_redrawing_while_blocks_are_printed_wipes_nothing_out(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, colour=True)
    answer = "\n\n".join(f"Paragraph {number}\n\n- one\n- two\n- three" for number in range(40))
    moving = Animated(screen.console, refresh_seconds=0.0001)
    screen.console.print("what stood before")
    moving.busy("thinking")
    for at in range(0, len(answer), 3):
        moving.feed(answer[at : at + 3])
    moving.quiet()
    shown = on_a_screen(seen(screen))
    numbers = [int(line.split()[1]) for line in shown if line.startswith("Paragraph")]
    assert shown[0] == "what stood before" and numbers == list(range(40))
    assert len(shown) == 1 + 4 * 40 and not any("thinking" in line for line in shown)


def test_what_moves_never_outgrows_the_screen(tmp_path: Path) -> None:
    screen = make_screen(tmp_path, colour=True)
    assert isinstance(screen.view, Animated)
    screen.view.feed("".join(f"- item {number}\n" for number in range(100)))
    rows = screen.console.render_lines(screen.view)
    assert len(rows) < screen.console.height and "item 99" in str(rows) and "item 1'" not in str(rows)


def test_the_line_below_shows_tokens_and_speed(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None, _environ={"TERM": "xterm"})
    now, tokens = [0.0], [100]
    view = Animated(console, lambda: tokens[0], lambda: now[0])
    view.busy("thinking")
    now[0], tokens[0] = 2.0, 160
    with console.capture() as capture:
        console.print(view)
    view.quiet()
    assert "thinking · 2 s · 60 tokens · 30 tokens/s · Ctrl-C stops" in capture.get()


def answers(*lines: str | type[BaseException]) -> tuple[list[str], object]:
    questions: list[str] = []
    remaining = iter(lines)

    def ask(question: str) -> str:
        questions.append(question)
        line = next(remaining)
        if isinstance(line, str):
            return line
        raise line

    return questions, ask


@pytest.mark.parametrize(
    ("answer", "allowed"),
    [("y", True), ("YES ", True), ("", False), ("n", False), ("yeah", False), (EOFError, False)],
)
def test_only_an_explicit_yes_allows(screen: Screen, answer: str | type[BaseException], allowed: bool) -> None:
    # ENTER must not be a yes: it is pressed by habit.
    _, ask = answers(answer)
    asker = Asker(ask, screen)  # type: ignore[arg-type]
    assert asker(EDIT) is allowed and not asker.stopped


def test_ctrl_c_is_a_no_that_stops(screen: Screen) -> None:
    _, ask = answers(KeyboardInterrupt)
    asker = Asker(ask, screen)  # type: ignore[arg-type]
    assert asker(EDIT) is False and asker.stopped


def test_always_is_told_apart_from_yes(screen: Screen) -> None:
    _, ask = answers("always", "A", "y")
    asker = Asker(ask, screen)  # type: ignore[arg-type]
    assert [asker(EDIT), asker(EDIT), asker(EDIT)] == ["always", "always", True]


def test_what_was_too_long_to_show_can_be_shown_before_it_is_allowed(screen: Screen) -> None:
    questions, ask = answers("show", "y")
    asker = Asker(ask, screen)  # type: ignore[arg-type]
    screen.draw(CallRequested(LONG))
    assert "5 lines left out" in seen(screen) and "echo 15" not in seen(screen)
    assert asker(LONG) is True and "echo 15" in seen(screen)
    assert "show" in questions[0] and "show" not in questions[1]


def test_a_long_diff_is_cut_and_says_so(screen: Screen) -> None:
    text = "".join(f"{number}\n" for number in range(SHOWN_DIFF_ROWS + 3))
    screen.call(ToolCall("Edit", {"file_path": "new.py", "new_string": text}))
    assert screen.left_out and seen(screen).endswith("... 3 more rows of the diff left out ...\n")
