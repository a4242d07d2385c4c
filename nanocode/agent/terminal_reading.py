"""The input line: history, several lines, completion, and a status line below it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import Output

from nanocode.agent.policy import MODES
from nanocode.agent.terminal_commands import COMMANDS
from nanocode.agent.terminal_text import visible

MOST_COMPLETIONS = 200


@dataclass(frozen=True)
class Status:
    """What the prompt and the line below it say. ``context_used`` and ``context_size`` in tokens, None if unknown."""

    mode: str
    model: str
    workspace: str
    unsafe: bool = False
    context_used: int | None = None
    context_size: int | None = None

    @property
    def prompt(self) -> str:
        return f"{'UNSAFE ' if self.unsafe else ''}{self.mode}> "

    def line(self) -> str:
        """Everything, for a terminal that has room for it."""
        parts = [self.mode, visible(self.model)]
        if self.context_used is not None and self.context_size:
            used = min(self.context_used, self.context_size)
            parts.append(f"context {used} of {self.context_size} tokens ({100 * used // self.context_size} %)")
        parts.append(visible(self.workspace))
        return " · ".join(["UNSAFE: no sandbox", *parts] if self.unsafe else parts)


def complete(text: str, workspace: Path, names: Callable[[], list[str]]) -> Iterator[tuple[str, int]]:
    """What may stand in place of the last word of ``text``, with the length of what it replaces.

    A first word with a slash is a command; /mode and /model complete what they know; all else is a path, of the
    workspace or, for /export, of the current folder.
    """
    command, space, argument = text.partition(" ")
    if not space and command.startswith("/"):
        found: Iterable[str] = (name for name in COMMANDS if name.startswith(command))
        word = command
    elif command == "/mode":
        found, word = (mode for mode in MODES if mode.startswith(argument)), argument
    elif command == "/model":
        found, word = (name for name in names() if name.startswith(argument)), argument
    else:
        word = text[max(text.rfind(" "), text.rfind("\n")) + 1 :]
        found = paths(word, Path() if command == "/export" else workspace)
    for _, each in zip(range(MOST_COMPLETIONS), found, strict=False):
        yield each, len(word)


def paths(word: str, folder: Path) -> Iterator[str]:
    """Paths below ``folder`` that begin as ``word`` does, sorted, folders with a slash; hidden ones when asked for."""
    parent, _, start = word.rpartition("/")
    if word.startswith("/") or ".." in parent.split("/"):
        return
    try:
        entries = sorted((folder / parent).iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.name.startswith(start) and (start or not entry.name.startswith(".")):
            yield f"{parent}/{entry.name}".removeprefix("/") + ("/" if entry.is_dir() else "")


@dataclass
class _WorkspaceCompleter(Completer):
    workspace: Path
    names: Callable[[], list[str]]

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        for text, replaced in complete(document.text_before_cursor, self.workspace, self.names):
            yield Completion(text, start_position=-replaced, display=visible(text))


class LineReader:
    """Reads what a person types. ``history`` is a file, None to keep none; ``source`` and ``sink`` are for tests."""

    def __init__(
        self,
        status: Callable[[], Status],
        workspace: Path,
        names: Callable[[], list[str]],
        history: Path | None,
        source: Input | None = None,
        sink: Output | None = None,
    ) -> None:
        self._status = status
        kept: History = InMemoryHistory() if history is None else FileHistory(str(history))
        self._session: PromptSession[str] = PromptSession(
            history=kept,
            completer=_WorkspaceCompleter(workspace, names),
            complete_while_typing=False,
            key_bindings=_bindings(),
            multiline=True,
            prompt_continuation="... ",
            input=source,
            output=sink,
        )

    def read(self) -> str:
        """What was typed. Raises EOFError on Ctrl-D, KeyboardInterrupt on Ctrl-C on an empty line."""
        status = self._status()
        colour = "ansired bold" if status.unsafe else "bold"
        return self._session.prompt(FormattedText([(colour, status.prompt)]), bottom_toolbar=status.line())


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif buffer.document.text_before_cursor.endswith("\\") and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    return bindings
