"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

MODEL_HELP = "A release (nano, nano@3) or the first digits of any record's digest."

Model = Annotated[str, typer.Argument(help=MODEL_HELP)]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]
