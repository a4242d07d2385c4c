"""`nanocode run`: the whole pipeline, with signals, exit codes and restarts handled."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from nanocode.cli.context import STORE_VARIABLE, StoreOption, find_store, project_root
from nanocode.cli.supervisor import Supervisor
from nanocode.cli.surveying import ReuseOption
from nanocode.config import ConfigError
from nanocode.config_file import load
from nanocode.planning.stages import plan_stages
from steps.signals import INTERRUPTED

SEPARATOR = ";"

ConfigArgument = Annotated[Path | None, typer.Argument(help="TOML file of the run. Default: configs/nano.toml.")]
OverrideOption = Annotated[list[str], typer.Option("--override", help="Change one value: 'dpo.lr=2e-4'. Repeatable.")]


def run(
    context: typer.Context,
    config: ConfigArgument = None,
    override: OverrideOption = [],  # noqa: B006 - Typer's way to say "none given"
    reuse: ReuseOption = [],  # noqa: B006
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Start again after a death that was no error of its own.")
    ] = False,
    store: StoreOption = None,
) -> None:
    """Train, align, evaluate and release a model, from raw text to a numbered version.

    What is in the store already is not made again. Ctrl-C or SIGTERM lets the running stages save and ends with 75:
    the same command goes on from there, on this machine or on another one with the same store.
    """
    path = config or project_root() / "configs" / "nano.toml"
    settings = load(path, override)
    plan_stages(settings)  # a model that cannot be built is refused here, not after hours of data
    if reuse:
        from steps.pipeline.reuse import check_reuse

        check_reuse(frozenset(reuse), settings)
    chosen = store or context.obj.store
    environment = dict(os.environ)
    opened = find_store(chosen, settings.store)  # a store that does not answer is said now, in one line
    if chosen:
        environment[STORE_VARIABLE] = opened.url
    supervisor = Supervisor(flow_command(path, override, reuse), environment, settings.compute.grace_seconds, _say)
    ending = supervisor.run(keep_going)
    if ending.status == INTERRUPTED:
        _say(f"interrupted: {ending.message}")
    elif ending.message:
        _say(f"error: {ending.message}")
    raise typer.Exit(ending.status)


def flow_command(config: Path, overrides: Sequence[str], reuse: Sequence[str] = ()) -> list[str]:
    """The command line that runs the flow. Raises ConfigError for an override that it cannot carry."""
    for each in overrides:
        if SEPARATOR in each:
            raise ConfigError(f"override {each!r} holds a {SEPARATOR!r}: write that value into the config file")
    flow = project_root() / "flows" / "full_pipeline.py"
    command = [sys.executable, str(flow), "--config", "config", str(config.absolute()), "run"]
    if overrides:
        command += ["--override", f"{SEPARATOR} ".join(overrides)]
    return [*command, "--reuse", ",".join(reuse)] if reuse else command


def _say(line: str) -> None:
    typer.echo(line, err=True)
