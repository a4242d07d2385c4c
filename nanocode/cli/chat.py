"""`nanocode chat`: a conversation with a model in the terminal, without tools."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer

from nanocode.agent.context import ContextWindow
from nanocode.agent.session import StreamingResponder
from nanocode.cli.context import StoreOption
from nanocode.conversation import ConversationError, Message
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow
from nanocode.inference.sampling import Sampling

if TYPE_CHECKING:
    from nanocode.cli.model_loading import LoadedModel

_SAMPLING = "How the model answers"


def chat(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Release (nano, nano@3), digest prefix or folder.")],
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Say this one thing, then leave.")] = None,
    system: Annotated[str | None, typer.Option(help="Opens the conversation, before the first message.")] = None,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token.", rich_help_panel=_SAMPLING)
    ] = 0.0,
    top_p: Annotated[
        float,
        typer.Option(help="Draw from the likeliest with this share in sum; 1: off.", rich_help_panel=_SAMPLING),
    ] = 1.0,
    seed: Annotated[int, typer.Option(min=0, help="Of sampling.", rich_help_panel=_SAMPLING)] = 0,
    max_new_tokens: Annotated[
        int | None,
        typer.Option(min=1, help="Of a reply; default: a quarter of the context.", rich_help_panel=_SAMPLING),
    ] = None,
    store: StoreOption = None,
) -> None:
    """Talk to a model. It has no tools here: `nanocode agent` gives it some.

    Without a terminal what is piped in is said, and the reply is all that is printed. In a conversation Ctrl-C stops a
    reply, /clear starts anew, Ctrl-D leaves.
    """
    said = prompt if prompt is not None or sys.stdin.isatty() else sys.stdin.read()
    if said is not None and not said.strip():
        raise typer.BadParameter("there is nothing to say: give -p PROMPT or pipe it in", param_hint="--prompt")
    try:
        sampling = Sampling(temperature, top_p=top_p, seed=seed)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None

    from nanocode.cli.model_loading import load_named

    loaded = load_named(model, store or context.obj.store)
    talk = _talk(loaded, sampling, max_new_tokens, system)
    if said is None:
        typer.secho(f"{loaded.found.label}: /clear starts anew, ctrl-d leaves", dim=True)
        _converse(talk, _reader())
    elif not talk.say(said):
        raise typer.Exit(1)


@dataclass
class Talk:
    """A conversation that is printed as it comes. `window` keeps what the model reads within its context."""

    responder: StreamingResponder
    window: Callable[[], ContextWindow]
    system: str | None = None
    _messages: list[Message] = field(default_factory=list, init=False)
    _window: ContextWindow = field(init=False)

    def __post_init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._messages = [] if self.system is None else [Message("system", self.system)]
        self._window = self.window()

    def say(self, text: str) -> bool:
        """Print the reply to `text`; whether there was one. What failed leaves no trace in the conversation."""
        asked = [*self._messages, Message("user", text)]
        try:
            message = self._reply(asked)
        except (ContextOverflow, ConversationError) as error:
            typer.echo()
            typer.secho(f"no reply: {' '.join(str(error).split())}", fg="yellow", err=True)
            return False
        typer.echo()
        if isinstance(message, CutReply):
            typer.secho(f"({message.why})", dim=True, err=True)
        if message.tool_call is not None:
            name = message.tool_call.name
            typer.secho(f"(it would call {name} now: `nanocode agent` gives it tools)", dim=True, err=True)
        self._messages = [*asked, Message("assistant", message.content)]
        return True

    def _reply(self, asked: list[Message]) -> Message:
        said = ""
        pieces = self.responder.stream(self._window.view(asked).messages)
        try:
            for piece in pieces:
                if isinstance(piece, Message):
                    return piece
                said += piece
                typer.echo(piece, nl=False)
        except KeyboardInterrupt:
            typer.secho(" (stopped)", dim=True, nl=False)
        return Message("assistant", said)


def _talk(loaded: LoadedModel, sampling: Sampling, max_new_tokens: int | None, system: str | None) -> Talk:
    from nanocode.inference.responder import ModelResponder

    engine = loaded.engine

    def window() -> ContextWindow:
        try:
            return ContextWindow.of_model(engine.tokenizer, engine.context_tokens, max_new_tokens)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--max-new-tokens") from None

    room = engine.context_tokens - window().limit_tokens
    return Talk(ModelResponder(engine, max_new_tokens=room, sampling=sampling), window, system)


def _converse(talk: Talk, read: Callable[[], str]) -> None:
    """Until the end of input."""
    while True:
        try:
            text = read()
        except KeyboardInterrupt:
            continue
        except EOFError:
            return
        if text.strip() == "/clear":
            talk.clear()
        elif text.strip():
            talk.say(text)


def _reader() -> Callable[[], str]:
    from prompt_toolkit import PromptSession

    session: PromptSession[str] = PromptSession()
    return lambda: session.prompt("> ")
