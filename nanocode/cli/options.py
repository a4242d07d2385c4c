"""Arguments and options that several commands share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer

MODEL_HELP = "A release (nano, nano@3) or the first digits of any record's digest."

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


def endpoint_key(variable: str | None, environment: Mapping[str, str]) -> str | None:
    """The key that --endpoint-key-env names; None where it names none. Raises BadParameter when it is not there."""
    if variable is None:
        return None
    if not environment.get(variable):
        raise typer.BadParameter(f"the environment has no {variable}: export it", param_hint="--endpoint-key-env")
    return environment[variable]
