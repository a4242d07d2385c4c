"""`nanocode lineage why`: the exact fields for which a stage would run again."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nanocode.cli.context import StoreOption, project_root
from nanocode.cli.run import OverrideOption
from nanocode.cli.surveying import ReuseOption, amount, as_data, environment_lines, repository_of, take_survey
from nanocode.config import ConfigError
from nanocode.config_file import load

if TYPE_CHECKING:
    from steps.pipeline.outlook import Outlook


def why(
    context: typer.Context,
    stage: Annotated[
        str, typer.Argument(help="A stage (pretrain, evaluate) or one artifact (nano/base, evaluation-dpo).")
    ],
    config: Annotated[
        Path | None, typer.Option("--config", help="TOML file of the run. Default: configs/nano.toml.")
    ] = None,
    override: OverrideOption = [],  # noqa: B006 - Typer's way to say "none given"
    reuse: ReuseOption = [],  # noqa: B006
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
    store: StoreOption = None,
) -> None:
    """Say why a stage would run again: the fields of its cache key that differ from the nearest record.

    Config values by path, the content of inputs by role, edited modules by name. What it waits for is named too: a
    stage below one that runs is made only when that comes out different. Nothing is run.
    """
    settings = load(config or project_root() / "configs" / "nano.toml", override)
    repository = repository_of(settings, store or context.obj.store)
    outlooks = _asked(take_survey(settings, repository, reuse), stage)
    if as_json:
        typer.echo(json.dumps(as_data(outlooks, repository.store.url)))
    else:
        typer.echo("\n".join(line for outlook in outlooks for line in _told(outlook)))


def _asked(outlooks: list[Outlook], asked: str) -> list[Outlook]:
    """The outlooks of a stage or artifact. Raises ConfigError with the nearest name."""
    from steps.pipeline.outlook import of_stage

    found = of_stage(outlooks, asked)
    if not found:
        names = list(dict.fromkeys([outlook.step for outlook in outlooks] + [outlook.name for outlook in outlooks]))
        close = difflib.get_close_matches(asked, names, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(names)}"
        raise ConfigError(f"no stage or artifact of this run is called {asked!r}: {hint}")
    return found


def _told(outlook: Outlook) -> list[str]:
    against = outlook.explanation.against
    found = f" as {outlook.record[:12]}" if outlook.record else ""
    head = f"{outlook.step} {outlook.name}: {outlook.state}{found}"
    if against is not None and outlook.record != against.record:
        head += f", compared with record {against.record[:12]}"
    lines = [head, *(f"  {reason}" for reason in outlook.reasons())]
    if outlook.expected is not None:
        lines.append(f"  expected {amount(outlook)} ({outlook.expected.basis})")
    return lines + [f"  {line}" for line in environment_lines([outlook])]
