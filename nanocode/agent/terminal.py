"""The agent on a terminal: draws events, asks before risky calls, reads commands."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from rich.console import Console
from rich.text import Text

from nanocode.agent.files import ToolError
from nanocode.agent.policy import MODES
from nanocode.agent.session import AssistantText, CallFinished, CallRequested, Event, Session, Stopped
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

DIFF_CONTEXT_LINES = 2
SHOWN_DIFF_LINES = 40
SHOWN_RESULT_LINES = 12
SHOWN_ARGUMENT_CHARACTERS = 200
HELP = """\
/help          this list
/clear         forget the conversation
/show          print the conversation
/undo          take back the last edit
/mode [MODE]   show or set what needs asking: plan, ask, auto-edit, auto
/quit          leave (also Ctrl-D); Ctrl-C stops a running answer"""


def visible(text: str) -> str:
    """Text that cannot steer the terminal: control characters other than newline and tab become ``\\xNN``."""
    if text.isprintable():
        return text
    return "".join(f"\\x{ord(character):02x}" if _steers(character) else character for character in text)


def _steers(character: str) -> bool:
    """Control characters (escape sequences) and format characters (text that runs backwards)."""
    return unicodedata.category(character) in ("Cc", "Cf") and character not in "\n\t"


def diff_lines(before: str, after: str) -> list[str]:
    """A short unified diff without file headers."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=DIFF_CONTEXT_LINES, lineterm="")
    return list(lines)[2:]


def clipped(lines: list[str], limit: int) -> list[str]:
    """The first ``limit`` lines and a note on the rest."""
    return lines if len(lines) <= limit else [*lines[:limit], f"... {len(lines) - limit} more lines"]


@dataclass
class Screen:
    """Draws one session's events; model and file text is never taken as markup or as terminal control."""

    console: Console
    toolbox: Toolbox

    def draw(self, event: Event) -> None:
        match event:
            case AssistantText(text):
                self.line(text)
            case CallRequested(call):
                self._call(call)
            case CallFinished(_, result):
                shown = "\n".join(clipped(result.text.split("\n"), SHOWN_RESULT_LINES))
                self.line(shown, "dim" if result.ok else "red")
            case Stopped("finished", _):
                pass
            case Stopped(reason, detail):
                self.line(f"stopped ({reason}): {detail}", "yellow")

    def line(self, text: str, style: str = "") -> None:
        self.console.print(Text(visible(text), style=style))

    def _call(self, call: ToolCall) -> None:
        preview = self.toolbox.preview(call)
        hidden = {"old_string", "new_string"} if preview is not None else set()
        shown = {name: value for name, value in call.arguments.items() if name not in hidden}
        arguments = [f"{name}={value[:SHOWN_ARGUMENT_CHARACTERS]!r}" for name, value in shown.items()]
        self.line(f"{call.name}({', '.join(arguments)})", "bold cyan")
        for row in clipped(diff_lines(*preview), SHOWN_DIFF_LINES) if preview is not None else []:
            self.line(row, {"+": "green", "-": "red"}.get(row[:1], "dim"))


@dataclass
class Asker:
    """Asks before a call; only an explicit yes allows it, and ``always`` holds for that tool until the session ends."""

    ask: Callable[[str], str]
    always: set[str] = field(default_factory=set)

    def __call__(self, call: ToolCall) -> bool:
        if call.name in self.always:
            return True
        try:
            answer = self.ask(f"allow {call.name}? [y/N/always] ").strip().casefold()
        except (EOFError, KeyboardInterrupt):
            return False
        if answer in ("a", "always"):
            self.always.add(call.name)
        return answer in ("y", "yes", "a", "always")


@dataclass
class Terminal:
    """An interactive session: ``read`` gives a line, raises EOFError at the end; ``make_session`` starts afresh."""

    screen: Screen
    make_session: Callable[[], Session]
    read: Callable[[], str]

    def run(self) -> None:
        """Until /quit or end of input."""
        session = self.make_session()
        while True:
            try:
                text = self.read().strip()
            except KeyboardInterrupt:
                continue
            except EOFError:
                return
            if text in ("/quit", "/exit"):
                return
            if text == "/clear":
                session = self.make_session()
            elif text.startswith("/"):
                self._command(text, session)
            elif text:
                self._answer(session, text)

    def _answer(self, session: Session, text: str) -> None:
        try:
            for event in session.send(text):
                self.screen.draw(event)
        except KeyboardInterrupt:
            self.screen.line("interrupted; that turn is forgotten, its edits stay (/undo takes them back)", "yellow")

    def _command(self, text: str, session: Session) -> None:
        name, _, argument = text.partition(" ")
        if name == "/help":
            self.screen.line(HELP)
        elif name == "/show":
            for message in session.conversation:
                call = f"\n{message.tool_call.name} {dict(message.tool_call.arguments)}" if message.tool_call else ""
                self.screen.line(f"[{message.role}] {message.content}{call}")
        elif name == "/undo":
            self._undo()
        elif name == "/mode":
            self._mode(argument.strip())
        else:
            self.screen.line(f"unknown command {name}: /help lists them", "red")

    def _undo(self) -> None:
        try:
            path = self.screen.toolbox.undo()
        except ToolError as error:
            self.screen.line(f"cannot undo: {error}", "red")
        else:
            self.screen.line("nothing to undo" if path is None else f"restored {path}")

    def _mode(self, wanted: str) -> None:
        toolbox = self.screen.toolbox
        for mode in MODES:
            if mode == wanted:
                toolbox.policy = replace(toolbox.policy, mode=mode)
        if wanted and wanted not in MODES:
            self.screen.line(f"unknown mode {wanted}: choose one of {', '.join(MODES)}", "red")
        self.screen.line(f"mode {toolbox.policy.mode}")
