"""`nanocode agent`: the coding agent, one-shot or interactive."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nanocode.agent.policy import Policy, deny_all
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable, Shell, UnsafeShell
from nanocode.agent.session import CallFinished, Session, SessionLimits, Stopped
from nanocode.agent.terminal import Asker, Screen, Terminal
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall, to_json

MODE_HELP = "plan: read only; ask: ask before edits and commands; auto-edit: ask before commands; auto: never ask."
HISTORY_FILE = "agent-history"


class ModeName(StrEnum):
    """`nanocode.agent.policy.MODES`, as choices of an option."""

    plan = "plan"
    ask = "ask"
    auto_edit = "auto-edit"
    auto = "auto"


def agent(
    model: Annotated[str | None, typer.Argument(help="Release name, digest prefix or folder.")] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="Do this one thing, then leave.")] = None,
    workspace: Annotated[Path, typer.Option(help="The folder to work in; nothing outside of it is touched.")] = Path(),
    mode: Annotated[ModeName, typer.Option(help=MODE_HELP)] = ModeName.ask,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the likeliest token.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampling, when the temperature is above 0.")] = 0,
    max_turns: Annotated[int, typer.Option(min=1, help="Model turns for one prompt.")] = SessionLimits.max_turns,
    store: Annotated[str | None, typer.Option(help="Where releases are kept; default as in the config.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print one JSON document, ask nothing.")] = False,
    unsafe: Annotated[bool, typer.Option("--unsafe", help="Run commands WITHOUT a sandbox.")] = False,
) -> None:
    """Talk to a trained coding agent, or let it do one thing (-p). Without a terminal, what needs asking is refused."""
    if not workspace.is_dir():
        raise typer.BadParameter(f"{workspace} is not a folder: create it or name another", param_hint="--workspace")
    task = _task(prompt, json_output)
    console = Console(stderr=json_output, highlight=False)
    policy = Policy(mode.value, _confirm(console, json_output))
    toolbox = Toolbox(workspace, policy, _shell(unsafe))

    # Loading a model takes seconds: every cheap mistake is reported before.
    from nanocode.cli.model_loading import load_responder

    responder = load_responder(model, store, temperature, seed)

    def make_session() -> Session:
        return Session(responder, toolbox, SessionLimits(max_turns=max_turns))

    screen = Screen(console, toolbox)
    if task is None:
        _converse(screen, make_session, unsafe)
    elif not _one_shot(screen, make_session(), task, json_output):
        raise typer.Exit(1)


def _task(prompt: str | None, json_output: bool) -> str | None:
    """What to do in one go: the option, else what is piped in; None for a conversation."""
    task = prompt if prompt is not None or sys.stdin.isatty() else sys.stdin.read().strip()
    if task == "" or (json_output and task is None):
        raise typer.BadParameter("there is nothing to do: give -p PROMPT or pipe it in", param_hint="--prompt")
    return task


def _confirm(console: Console, json_output: bool) -> Callable[[ToolCall], bool]:
    """Ask on a terminal, refuse elsewhere."""
    if json_output or not sys.stdin.isatty():
        return deny_all
    # The choices in square brackets are text, not markup.
    return Asker(lambda question: console.input(question, markup=False))


def _shell(unsafe: bool) -> Shell | None:
    """The sandbox; None, said aloud, where it does not work; no sandbox only when asked for."""
    if unsafe:
        typer.secho("UNSAFE: commands run without a sandbox, with all your rights", fg="red", bold=True, err=True)
        return UnsafeShell()
    try:
        sandbox = Sandbox()
        sandbox.check()
    except SandboxUnavailable as error:
        typer.secho(f"Bash is off: {error}; --unsafe runs commands without a sandbox", fg="yellow", err=True)
        return None
    return sandbox


def _one_shot(screen: Screen, session: Session, task: str, json_output: bool) -> bool:
    """Whether the model came to its own end."""
    started = time.monotonic()
    calls: list[CallFinished] = []
    stopped = Stopped("finished")
    for event in session.send(task):
        if not json_output:
            screen.draw(event)
        if isinstance(event, CallFinished):
            calls.append(event)
        elif isinstance(event, Stopped):
            stopped = event
    if json_output:
        document = {
            "stop_reason": stopped.reason,
            "detail": stopped.detail,
            "calls": len(calls),
            "failed_calls": sum(not finished.result.ok for finished in calls),
            "seconds": round(time.monotonic() - started, 3),
            "conversation": to_json(session.conversation),
        }
        typer.echo(json.dumps(document, ensure_ascii=False))
    return stopped.reason == "finished"


def _converse(screen: Screen, make_session: Callable[[], Session], unsafe: bool) -> None:
    from prompt_toolkit import PromptSession
    from prompt_toolkit.history import FileHistory

    folder = Path(typer.get_app_dir("nanocode"))
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    history: PromptSession[str] = PromptSession(history=FileHistory(str(folder / HISTORY_FILE)))

    def read() -> str:
        mode = screen.toolbox.policy.mode
        return history.prompt(f"{'UNSAFE ' if unsafe else ''}{mode}> ")

    screen.line("/help lists the commands", "dim")
    Terminal(screen, make_session, read).run()
