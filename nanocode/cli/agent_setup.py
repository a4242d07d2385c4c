"""What `nanocode agent` looks at before it loads a model: the task, the workspace, the sandbox, the user's folders."""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import typer

from nanocode.agent.audit import AuditError, AuditLog
from nanocode.agent.retention import Retention, make_room
from nanocode.agent.rules import Rules, RulesError, load_rules
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable, Shell, UnsafeShell

RULES_FILE = "agent.toml"
AUDIT_FOLDER = "audit"
MAX_INPUT_BYTES = 1_000_000
# A pipe that nobody closes looks like a hang: after this long the user is told what is waited for.
PATIENCE_SECONDS = 2.0


def task(prompt: str | None, as_json: bool) -> str | None:
    """What to do in one go: the option, with what is piped in as context behind it; None for a conversation.

    Raises BadParameter when there is nothing to do.
    """
    piped = "" if sys.stdin.isatty() else _standard_input().strip()
    parts = [part for part in ((prompt or "").strip(), piped) if part]
    if not parts and (prompt is not None or as_json or not sys.stdin.isatty()):
        raise typer.BadParameter("there is nothing to do: give -p PROMPT or pipe it in", param_hint="--prompt")
    if not parts and not sys.stdout.isatty():
        raise typer.BadParameter("a conversation needs a terminal to show it: give -p PROMPT", param_hint="--prompt")
    return "\n\n".join(parts) or None


def _standard_input() -> str:
    stream = sys.stdin.buffer
    _say_what_is_awaited(stream)
    data = stream.read(MAX_INPUT_BYTES + 1)
    if len(data) > MAX_INPUT_BYTES:
        raise typer.BadParameter(
            f"standard input holds more than {MAX_INPUT_BYTES} bytes: put it in a file of the workspace and name that",
            param_hint="--prompt",
        )
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise typer.BadParameter("standard input is not UTF-8 text", param_hint="--prompt") from None


def _say_what_is_awaited(stream: BinaryIO) -> None:
    try:
        ready, _, _ = select.select([stream], [], [], PATIENCE_SECONDS)
    except (OSError, ValueError):
        # Not a descriptor that can be waited for; reading it says what is wrong, if anything.
        return
    if not ready:
        typer.echo("waiting for standard input to end; </dev/null gives none", err=True)


def check_workspace(workspace: Path) -> None:
    """Raise BadParameter unless it is a folder; say so when nothing can be written to it."""
    if not workspace.is_dir():
        wrong = "is not a folder" if workspace.exists() else "does not exist"
        raise typer.BadParameter(f"{workspace} {wrong}: name the folder to work in", param_hint="--workspace")
    if not os.access(workspace, os.R_OK | os.X_OK):
        raise typer.BadParameter(f"{workspace} cannot be read: give yourself the right", param_hint="--workspace")
    if not os.access(workspace, os.W_OK):
        typer.secho(f"{workspace.resolve()} is read-only: edits will be refused", fg="yellow", err=True)


def shell(unsafe: bool) -> Shell | None:
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


def rules(path: Path | None, workspace: Path) -> Rules:
    """The user's rules: those asked for, else those of his configuration folder. Raises BadParameter."""
    chosen = path or _user_folder("XDG_CONFIG_HOME", ".config") / RULES_FILE
    if path is None and not chosen.exists():
        return Rules()
    try:
        return load_rules(chosen, workspace)
    except RulesError as error:
        raise typer.BadParameter(str(error), param_hint="--rules") from None


def audit_log(wanted: str | None) -> AuditLog | None:
    """The log asked for, None for ``none``; without a wish a new file for this session. Raises AuditError."""
    if wanted == "none":
        return None
    name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{os.getpid()}.jsonl"
    path = _state_path() / AUDIT_FOLDER / name if wanted is None else Path(wanted).expanduser()
    try:
        return AuditLog(path)
    except OSError as error:
        raise AuditError(
            f"the audit log {path} cannot be written ({error.strerror}): name another with --audit-log, or none"
        ) from None


def forget_old_images(log: AuditLog, retention: Retention) -> None:
    """Make room beside the log; a folder in which that fails is said and ends no session."""
    try:
        make_room(log.path.parent, retention, time.time())
    except OSError as error:
        typer.secho(f"old files that undo has kept stay in {log.path.parent}: {error.strerror}", fg="yellow", err=True)


def state_folder() -> Path:
    """Where history and audit logs are kept; made when it is not there, for its owner alone."""
    folder = _state_path()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _state_path() -> Path:
    return _user_folder("XDG_STATE_HOME", ".local/state")


def _user_folder(variable: str, usual: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Our folder in one of the XDG base directories, whose specification says to ignore a relative path."""
    base = Path(environment.get(variable, ""))
    return (base if base.is_absolute() else Path.home() / usual) / "nanocode"
