"""The `nanocode` command. Each subcommand lives in a module of its own, which is imported when it is asked for.

This package is the roof: it may import everything, and nothing imports it.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from nanocode.cli.context import STORE_HELP, Settings
from nanocode.cli.errors import exit_code, one_line
from nanocode.cli.lazy import LazyGroup, module_command

app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 ok; 1 what was asked for failed; 2 wrong use; 75 interrupted, run it again to go on.",
)

LazyGroup.lazy_commands = {
    "plan": module_command("nanocode.cli.plan:plan"),
    "run": module_command("nanocode.cli.run:run"),
    "models": module_command("nanocode.cli.models:app"),
    "lineage": module_command("nanocode.cli.lineage:app"),
    "store": module_command("nanocode.cli.store:app"),
    "data": module_command("nanocode.cli.data:app"),
    "agent": module_command("nanocode.cli.agent:agent"),
    "audit": module_command("nanocode.cli.audit:audit"),
    "chat": module_command("nanocode.cli.chat:chat"),
    "serve": module_command("nanocode.cli.serve:serve"),
    "eval": module_command("nanocode.cli.evaluate:evaluate"),
    "doctor": module_command("nanocode.cli.doctor:doctor"),
    "teacher": module_command("nanocode.cli.teacher:teacher"),
}


@app.callback()
def options(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option(help=STORE_HELP),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Train a small coding agent end to end, use it, and audit what is in it.

    Start with `nanocode run`, then `nanocode models`. MODEL is a release (`nano` for the latest, `nano@3` for version
    3), the first digits of a digest, or a folder.
    """
    context.obj.store = store
    context.default_map = {name: {"store": store} for name in LazyGroup.lazy_commands}
    context.obj.debug = debug


def main() -> None:
    """Run the command line and exit.

    A failure is one line on stderr and an exit code; the traceback needs `--debug`.
    """
    settings = Settings()
    try:
        app(obj=settings, prog_name="nanocode")
    except Exception as error:
        if settings.debug:
            raise
        sys.stderr.write(f"error: {one_line(error)}\n")
        sys.exit(exit_code(error))
