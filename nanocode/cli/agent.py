"""`nanocode agent`: the coding agent, one-shot or interactive."""

from __future__ import annotations

import select
import sys
import termios
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from nanocode.agent.policy import Policy
from nanocode.agent.retention import Retention
from nanocode.agent.session import Session, SessionLimits
from nanocode.agent.terminal_asking import Asker
from nanocode.agent.terminal_commands import Dialogue, Model
from nanocode.agent.terminal_drawing import Screen
from nanocode.agent.tools import Toolbox
from nanocode.cli import agent_options as options
from nanocode.cli.agent_model import Request, Source, chosen_source, switchable
from nanocode.cli.agent_one_shot import Drawn, Listener, Written, run_once
from nanocode.cli.agent_setup import audit_log as open_audit_log
from nanocode.cli.agent_setup import check_workspace, forget_old_images, shell, state_folder, task
from nanocode.cli.agent_setup import rules as load_user_rules
from nanocode.inference.sampling import Sampling

if TYPE_CHECKING:
    from nanocode.agent.terminal_reading import Status

_LOOK_SECONDS = 0.1
HISTORY_FILE = "agent-history"


def agent(
    model: options.ModelName = None,
    prompt: options.Prompt = None,
    as_json: options.AsJson = False,
    store: options.Store = None,
    workspace: options.Workspace = Path(),
    mode: options.Mode = options.ModeName.ask,
    unsafe: options.Unsafe = False,
    audit_log: options.AuditLogPath = None,
    undo_days: options.UndoDays = Retention.days,
    undo_megabytes: options.UndoMegabytes = Retention.megabytes,
    rules: options.RulesPath = None,
    max_turns: options.MaxTurns = SessionLimits.max_turns,
    temperature: options.Temperature = None,
    top_k: options.TopK = 0,
    top_p: options.TopP = 1.0,
    min_p: options.MinP = 0.0,
    seed: options.Seed = None,
    grammar: options.Grammar = False,
    endpoint: options.Endpoint = None,
    endpoint_model: options.EndpointModel = None,
    endpoint_key_env: options.EndpointKeyVariable = None,
    trained: options.Trained = False,
) -> None:
    """Talk to a trained coding agent, or let it do one thing (-p).

    It reads, searches and edits files in a workspace and runs commands in a
    sandbox. It asks before it changes anything; without a terminal to ask on,
    what needs asking is refused. Exit code 0: it came to its own end.

    \b
    nanocode agent                              the newest release, in this folder
    nanocode agent nano@3 --workspace DIR       another model, another folder
    nanocode agent -p "where is add defined?"   one answer, then leave
    git diff | nanocode agent -p "explain"      piped text goes behind the prompt
    nanocode agent -p "fix a.py" --mode auto --json | jq .type
    nanocode agent --endpoint http://127.0.0.1:8000/v1 --endpoint-model NAME
    """
    check_workspace(workspace)
    source = chosen_source(
        Request(
            model=model,
            store=store,
            sampling=_sampling(temperature or 0.0, top_k, top_p, min_p, seed or 0),
            temperature=temperature,
            seed=seed,
            grammar=grammar,
            endpoint=endpoint,
            endpoint_model=endpoint_model,
            key_variable=endpoint_key_env,
            trained=trained,
        )
    )
    policy = Policy(mode.value, rules=load_user_rules(rules, workspace))
    setting = Setting(workspace, unsafe, audit_log, max_turns, as_json, Retention(undo_days, undo_megabytes))
    _work(source, task(prompt, as_json), policy, setting)


@dataclass(frozen=True)
class Setting:
    """How to work, whatever the model."""

    workspace: Path
    unsafe: bool
    audit_log: str | None
    max_turns: int
    as_json: bool
    retention: Retention = field(default_factory=Retention)


def _sampling(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> Sampling:
    try:
        return Sampling(temperature, top_k, top_p, min_p, seed)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="sampling") from None


def _work(source: Source, task: str | None, policy: Policy, setting: Setting) -> None:
    """Load the model, then one prompt or a conversation. Every cheap mistake has been reported before."""
    if isinstance(sys.stdout, TextIOWrapper):
        # A locale without the characters of diffs and results shows their numbers; it must not end the run.
        sys.stdout.reconfigure(errors="backslashreplace")
    console = Console(stderr=setting.as_json, highlight=False)
    with open_audit_log(setting.audit_log) or nullcontext() as audit:
        if audit is not None:
            forget_old_images(audit, setting.retention)
        toolbox = Toolbox(setting.workspace, policy, shell(setting.unsafe), audit=audit)
        screen = Screen(console, toolbox)
        asker = Asker(partial(_ask, console), screen)
        if sys.stdin.isatty() and sys.stdout.isatty() and not setting.as_json:
            toolbox.policy = replace(policy, confirm=asker)
        screen.view.busy(f"loading {source.first or 'the newest release'}")
        try:
            model = source.load(source.first)
        finally:
            screen.view.quiet()

        def make_session(model: Model) -> Session:
            return Session(model.responder, toolbox, SessionLimits(max_turns=setting.max_turns), context=model.window())

        if task is None:
            _converse(Dialogue(screen, asker, model, switchable(source), make_session), setting)
            return
        listener = _listener(screen, model, setting)
        if not run_once(make_session(model), model, task, listener, lambda: asker.stopped):
            raise typer.Exit(1)


def _ask(console: Console, question: str) -> str:
    """What is typed after the question is seen: keys pressed before must not answer it. Raises EOFError on Ctrl-D."""
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    # The choices in square brackets are text, not markup.
    console.print(question, end="", markup=False)
    # A Ctrl-C just before a read begins is not seen until the read ends, so nothing is read before it is there.
    while not select.select([sys.stdin], [], [], _LOOK_SECONDS)[0]:
        pass
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line


def _listener(screen: Screen, model: Model, setting: Setting) -> Listener:
    if not setting.as_json:
        screen.generated = model.generated
        return Drawn(screen)
    toolbox = screen.toolbox
    return Written(
        typer.echo,
        {
            "model": model.name,
            "workspace": str(setting.workspace.resolve()),
            "mode": toolbox.policy.mode,
            "sandbox": "off" if toolbox.sandbox is None else "none" if setting.unsafe else "bubblewrap",
            "audit_log": None if toolbox.audit is None else str(toolbox.audit.path),
        },
    )


def status(dialogue: Dialogue, setting: Setting) -> Status:
    """What the input line shows now. The context holds what the model will see before the next prompt."""
    from nanocode.agent.terminal_reading import Status

    return Status(
        mode=dialogue.screen.toolbox.policy.mode,
        model=dialogue.model.name,
        workspace=str(setting.workspace.resolve()),
        unsafe=setting.unsafe,
        context_used=dialogue.model.count(dialogue.session.remembered),
        context_size=dialogue.model.context_tokens,
    )


def _converse(dialogue: Dialogue, setting: Setting) -> None:
    from nanocode.agent.terminal import Terminal
    from nanocode.agent.terminal_reading import LineReader

    reader = LineReader(
        partial(status, dialogue, setting), setting.workspace, dialogue.models.names, state_folder() / HISTORY_FILE
    )
    dialogue.screen.line(f"{dialogue.model.name} in {setting.workspace.resolve()}; /help lists the commands", "dim")
    Terminal(dialogue, reader.read).run()
