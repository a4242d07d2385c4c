"""Draws a session's events. Text of models and files is never taken as markup or as terminal control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from nanocode.agent.editing import plural
from nanocode.agent.session import (
    AssistantText,
    CallFinished,
    CallRequested,
    Elided,
    Event,
    Malformed,
    Stopped,
    TextDelta,
)
from nanocode.agent.terminal_live import Animated, Plain
from nanocode.agent.terminal_markdown import CODE_THEME, Tame
from nanocode.agent.terminal_text import DiffRow, clipped, diff_rows, visible
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

SHOWN_DIFF_ROWS = 40
SHOWN_RESULT_LINES = 12
SHOWN_COMMAND_LINES = 20
SHOWN_ARGUMENT_CHARACTERS = 200
DIFF_STYLES = {"+": "green", "-": "red"}


@dataclass
class Screen:
    """Draws on ``console``; ``toolbox`` foretells what an edit would do, ``generated`` counts the model's tokens.

    ``view`` moves where the console can. ``left_out``: the call drawn last was too long to be shown whole.
    """

    console: Console
    toolbox: Toolbox
    generated: Callable[[], int | None] = lambda: None
    left_out: bool = field(default=False, init=False)
    view: Animated | Plain = field(init=False)
    _streamed: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        moving = self.console.is_terminal and not self.console.is_dumb_terminal
        self.view = Animated(self.console, lambda: self.generated()) if moving else Plain(self.console)

    def begin(self) -> None:
        """The model's turn; nothing of an earlier one, which may have been broken off, counts."""
        self._streamed = False
        self.view.busy("thinking")

    def draw(self, event: Event) -> None:
        """One event; the view is busy again where the model or a tool goes on."""
        if isinstance(event, TextDelta):
            self.view.feed(event.text)
            self._streamed = True
            return
        if isinstance(event, AssistantText) and not self._streamed:
            self.view.feed(event.text)
        self.view.quiet()
        # What a malformed reply said is an AssistantText after it.
        self._streamed = self._streamed and isinstance(event, Malformed)
        self._draw(event)

    def _draw(self, event: Event) -> None:
        match event:
            case CallRequested(call):
                self.call(call)
                self.running(call)
            case CallFinished(_, result):
                shown = "\n".join(clipped(result.text.split("\n"), SHOWN_RESULT_LINES))
                self.line(shown, "dim" if result.ok else "red")
                self.view.busy("thinking")
            case Elided(results, exchanges):
                self.line(elision(results, exchanges), "yellow")
                self.view.busy("thinking")
            case Malformed(detail):
                self.line(f"malformed reply: {detail}", "yellow")
                self.view.busy("thinking")
            case Stopped(reason, detail) if reason != "finished":
                self.line(f"stopped ({reason}): {detail}", "yellow")

    def running(self, call: ToolCall) -> None:
        """The call runs from now on."""
        self.view.busy(f"running {visible(call.name)}")

    def line(self, text: str, style: str = "") -> None:
        """Text as it is, in lines that only the terminal breaks."""
        self.console.print(Text(visible(text), style=style), soft_wrap=True)

    def call(self, call: ToolCall, whole: bool = False) -> None:
        """Draw a call, an edit as a diff; ``whole`` leaves nothing out."""
        self.left_out = self._call(call, whole)

    def _call(self, call: ToolCall, whole: bool) -> bool:
        """Whether anything was left out."""
        preview = self.toolbox.preview(call)
        if preview is not None:
            self.line(f"{call.name} {call.arguments['file_path']}", "bold cyan")
            return self._diff(diff_rows(*preview), whole)
        if call.name == "Bash" and list(call.arguments) == ["command"]:
            return self._command(call.arguments["command"], whole)
        shown = {name: value if whole else _shortened(value) for name, value in call.arguments.items()}
        self.line(f"{call.name}({', '.join(f'{name}={value!r}' for name, value in shown.items())})", "bold cyan")
        return shown != dict(call.arguments)

    def _diff(self, rows: list[DiffRow], whole: bool) -> bool:
        width = len(str(max((row.number for row in rows), default=0)))
        drawn = rows if whole else rows[:SHOWN_DIFF_ROWS]
        for row in drawn:
            number = str(row.number) if row.number else ""
            self.line(f"{number:>{width + 2}} {row.mark} {row.text}".rstrip(), DIFF_STYLES.get(row.mark, "dim"))
        if len(drawn) < len(rows):
            self.line(f"... {len(rows) - len(drawn)} more rows of the diff left out ...", "yellow")
        return len(drawn) < len(rows)

    def _command(self, command: str, whole: bool) -> bool:
        """A command is shown whole while it has few lines: nobody can allow what he has not seen."""
        lines = command.split("\n")
        drawn = lines if whole else clipped(lines, SHOWN_COMMAND_LINES)
        self.line("Bash", "bold cyan")
        code = visible("\n".join(drawn))
        if self.console.color_system is None:
            self.line("\n".join(f"  {row}" for row in code.split("\n")))
        else:
            syntax = Syntax(code, "bash", theme=CODE_THEME, background_color="default", word_wrap=True)
            self.console.print(Tame(Padding(syntax, (0, 0, 0, 2))))
        return len(drawn) < len(lines)


def _shortened(value: str) -> str:
    if len(value) <= SHOWN_ARGUMENT_CHARACTERS:
        return value
    return f"{value[:SHOWN_ARGUMENT_CHARACTERS]}... {len(value) - SHOWN_ARGUMENT_CHARACTERS} characters left out ..."


def elision(results: int, exchanges: int) -> str:
    """What the model no longer sees, in words."""
    counts = ((results, "old tool result"), (exchanges, "old exchange"))
    parts = [plural(count, noun) for count, noun in counts if count]
    return f"the context is full: the model no longer sees {' and '.join(parts)}"
