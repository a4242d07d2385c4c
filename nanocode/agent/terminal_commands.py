"""What a person can ask of the terminal itself: the commands that start with a slash."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from nanocode.agent.context import ContextWindow
from nanocode.agent.files import ToolError
from nanocode.agent.policy import MODES
from nanocode.agent.session import Responder, Session
from nanocode.agent.terminal_asking import Asker
from nanocode.agent.terminal_drawing import Screen
from nanocode.agent.terminal_text import visible
from nanocode.conversation import Conversation, Message, to_json

KEYS = """\
Enter      sends; Alt-Enter, or a backslash before Enter, begins a new line
Tab        completes commands, models and paths of the workspace
Up, Down   earlier prompts
Ctrl-C     stops an answer; empties the line; twice on an empty line, leaves
Ctrl-D     leaves"""


class ModelUnavailable(ValueError):
    """A model that cannot be switched to; the message says why in one line."""


@dataclass(frozen=True)
class Model:
    """A model as the terminal knows it.

    ``window`` makes the view that it gets of a long conversation. ``context_tokens`` is how much it can hold, ``count``
    how much of that a conversation takes and ``generated`` how many tokens it has made so far in all; None where nobody
    knows.
    """

    name: str
    responder: Responder
    window: Callable[[], ContextWindow | None] = lambda: None
    context_tokens: int | None = None
    count: Callable[[Conversation], int | None] = lambda conversation: None
    generated: Callable[[], int | None] = lambda: None


@dataclass(frozen=True)
class Models:
    """Where models come from: `load` raises ModelUnavailable, ``names`` lists what it knows."""

    load: Callable[[str], Model]
    names: Callable[[], list[str]]


@dataclass
class Dialogue:
    """The state that commands change. ``make_session`` begins a conversation with a model."""

    screen: Screen
    asker: Asker
    model: Model
    models: Models
    make_session: Callable[[Model], Session]
    leaving: bool = False

    def __post_init__(self) -> None:
        self.session = self.make_session(self.model)
        self.screen.generated = lambda: self.model.generated()


@dataclass(frozen=True)
class Command:
    """A slash command: its argument as the help shows it, what it does in words, and the function."""

    argument: str
    help: str
    run: Callable[[Dialogue, str], None]


def run_command(dialogue: Dialogue, text: str) -> None:
    """Run ``/name argument``; an unknown name says so."""
    name, _, argument = text.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        dialogue.screen.line(f"unknown command {name}: /help lists them", "red")
    elif argument.strip() and not command.argument:
        dialogue.screen.line(f"{name} takes no argument", "red")
    else:
        command.run(dialogue, argument.strip())


def _help(dialogue: Dialogue, argument: str) -> None:
    del argument
    rows = [(f"{name} {command.argument}".strip(), command.help) for name, command in COMMANDS.items()]
    width = max(len(usage) for usage, _ in rows)
    dialogue.screen.line("\n".join([*(f"{usage:<{width}}  {text}" for usage, text in rows), "", KEYS]))


def _clear(dialogue: Dialogue, argument: str) -> None:
    del argument
    dialogue.session = dialogue.make_session(dialogue.model)
    dialogue.screen.toolbox.policy.approvals.forget()
    dialogue.screen.line("a new conversation; what was allowed always is asked again", "dim")


def _show(dialogue: Dialogue, argument: str) -> None:
    del argument
    if not dialogue.session.conversation:
        dialogue.screen.line("nothing has been said yet", "dim")
    for message in dialogue.session.conversation:
        dialogue.screen.line(f"[{message.role}]", "bold")
        if message.content:
            dialogue.screen.line(message.content)
        if message.tool_call is not None:
            dialogue.screen.line(_call_text(message))


def _call_text(message: Message) -> str:
    """A call with every argument whole, one a line."""
    assert message.tool_call is not None, "the caller has looked"
    arguments = (f"  {name}: {value}" for name, value in message.tool_call.arguments.items())
    return "\n".join([message.tool_call.name, *arguments])


def _undo(dialogue: Dialogue, argument: str) -> None:
    del argument
    try:
        restored = dialogue.screen.toolbox.undo()
    except (ToolError, OSError, RuntimeError) as error:
        dialogue.screen.line(f"cannot undo: {_reason(error)}", "red")
    else:
        dialogue.screen.line("nothing to undo" if restored is None else f"restored {restored}")


def _mode(dialogue: Dialogue, wanted: str) -> None:
    toolbox = dialogue.screen.toolbox
    for mode in MODES:
        if mode == wanted:
            toolbox.policy = replace(toolbox.policy, mode=mode)
    if wanted and wanted not in MODES:
        dialogue.screen.line(f"unknown mode {wanted}: choose one of {', '.join(MODES)}", "red")
    dialogue.screen.line(f"mode {toolbox.policy.mode}")


def _model(dialogue: Dialogue, wanted: str) -> None:
    """The conversation goes on with the other model, which then reads it from its beginning."""
    if wanted:
        dialogue.screen.view.busy(f"loading {visible(wanted)}")
        try:
            dialogue.model = dialogue.models.load(wanted)
        except ModelUnavailable as error:
            dialogue.screen.view.quiet()  # before the line, or it would be drawn over
            dialogue.screen.line(f"{error} (still {dialogue.model.name})", "red")
            return
        finally:
            dialogue.screen.view.quiet()
        dialogue.session.responder = dialogue.model.responder
        dialogue.session.context = dialogue.model.window()
    names = [] if wanted else dialogue.models.names()
    dialogue.screen.line(f"model {dialogue.model.name}" + (f" (released: {', '.join(names)})" if names else ""))


def _export(dialogue: Dialogue, name: str) -> None:
    try:
        path = export(dialogue.session.conversation, name)
    except (ToolError, OSError) as error:
        dialogue.screen.line(f"cannot export: {_reason(error)}", "red")
    else:
        dialogue.screen.line(f"wrote {path}")


def _reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error)


def export(conversation: Conversation, name: str) -> Path:
    """Write a conversation to a new file: JSON that `from_json` reads, or Markdown, as the suffix says.

    Raises ToolError for another suffix, a file that exists and an empty conversation, OSError from the system.
    """
    path = Path(name).expanduser()
    if not conversation:
        raise ToolError("nothing has been said yet")
    if path.suffix == ".json":
        text = json.dumps(to_json(conversation), indent=2) + "\n"
    elif path.suffix == ".md":
        text = as_markdown(conversation)
    else:
        raise ToolError("name a file that ends in .json or .md")
    try:
        with path.open("x", encoding="utf-8", errors="backslashreplace", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        raise ToolError(f"{path} exists already: name another file") from None
    return path


def as_markdown(conversation: Conversation) -> str:
    """A conversation to read: a heading a message, calls and results in fences that their text cannot close."""
    parts = []
    for message in conversation:
        body = _fenced(message.content) if message.role == "tool_result" else message.content
        parts += [f"## {message.role.replace('_', ' ')}", *([body] if body else [])]
        if message.tool_call is not None:
            parts.append(_fenced(_call_text(message)))
    return "\n\n".join(parts) + "\n"


def _fenced(text: str) -> str:
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}\n{text}\n{fence}"


def _quit(dialogue: Dialogue, argument: str) -> None:
    del argument
    dialogue.leaving = True


COMMANDS: Mapping[str, Command] = {
    "/help": Command("", "this list", _help),
    "/clear": Command("", "forget the conversation, begin anew", _clear),
    "/show": Command("", "print the conversation", _show),
    "/undo": Command("", "take back the last edit or command", _undo),
    "/mode": Command("[MODE]", f"show or set what needs asking: {', '.join(MODES)}", _mode),
    "/model": Command("[NAME]", "show or switch the model; the conversation goes on", _model),
    "/export": Command("FILE", "write the conversation to a new .json or .md file", _export),
    "/quit": Command("", "leave", _quit),
}
