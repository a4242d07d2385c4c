"""The options of `nanocode agent`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

MODE_HELP = "plan: read only; ask: ask before edits and commands; auto-edit: ask before commands; auto: never ask."
_SAMPLING, _OTHER, _SAFETY = "How the model answers", "Another model behind the agent", "What it may do"


class ModeName(StrEnum):
    """`nanocode.agent.policy.MODES`, as choices of an option."""

    plan = "plan"
    ask = "ask"
    auto_edit = "auto-edit"
    auto = "auto"


ModelName = Annotated[
    str | None, typer.Argument(help="Release (nano, nano@3), digest prefix or folder; default: the newest release.")
]
Prompt = Annotated[str | None, typer.Option("-p", "--prompt", help="Do this one thing, then leave.")]
AsJson = Annotated[
    bool, typer.Option("--json", help="With -p: one JSON event a line as things happen; asks nothing (docs/agent.md).")
]
Store = Annotated[str | None, typer.Option(help="Where releases are kept; default as in the config.")]

Workspace = Annotated[
    Path,
    typer.Option(help="The folder to work in; nothing outside of it is touched.", rich_help_panel=_SAFETY),
]
Mode = Annotated[ModeName, typer.Option(help=MODE_HELP, rich_help_panel=_SAFETY)]
Unsafe = Annotated[
    bool,
    typer.Option("--unsafe", help="Run commands WITHOUT a sandbox, with all your rights.", rich_help_panel=_SAFETY),
]
AuditLogPath = Annotated[
    str | None,
    typer.Option(
        metavar="PATH|none",
        help="Where every call is recorded; default: a file a session in your state folder.",
        rich_help_panel=_SAFETY,
    ),
]
RulesPath = Annotated[
    Path | None,
    typer.Option(
        "--rules",
        help="Your own deny and allow rules; default: agent.toml in your configuration folder, if it is there.",
        rich_help_panel=_SAFETY,
    ),
]
UndoDays = Annotated[
    float,
    typer.Option(min=0, help="What /undo needs is deleted so long after its last use.", rich_help_panel=_SAFETY),
]
UndoMegabytes = Annotated[
    float,
    typer.Option(min=0, help="The oldest of it goes while all takes more than that.", rich_help_panel=_SAFETY),
]
MaxTurns = Annotated[int, typer.Option(min=1, help="Model turns for one prompt.", rich_help_panel=_SAFETY)]

Temperature = Annotated[
    float | None,
    typer.Option(help="0 takes the likeliest token; default 0, or the endpoint's own.", rich_help_panel=_SAMPLING),
]
TopK = Annotated[int, typer.Option(help="Draw from so many likeliest tokens; 0: off.", rich_help_panel=_SAMPLING)]
TopP = Annotated[
    float, typer.Option(help="Draw from the likeliest with this share in sum; 1: off.", rich_help_panel=_SAMPLING)
]
MinP = Annotated[
    float, typer.Option(help="Draw from those this likely relative to the best; 0: off.", rich_help_panel=_SAMPLING)
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.", rich_help_panel=_SAMPLING)]
Grammar = Annotated[
    bool,
    typer.Option(
        "--grammar/--no-grammar",
        help="Hold tool calls to known tools and arguments while they are generated.",
        rich_help_panel=_SAMPLING,
    ),
]

Endpoint = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="An OpenAI-compatible server, e.g. http://127.0.0.1:8000/v1.", rich_help_panel=_OTHER
    ),
]
EndpointModel = Annotated[
    str | None, typer.Option(metavar="NAME", help="The model to ask for there.", rich_help_panel=_OTHER)
]
Trained = Annotated[
    bool,
    typer.Option(
        "--trained",
        help="It serves a model that nanocode trained: no system prompt, as in training.",
        rich_help_panel=_OTHER,
    ),
]
EndpointKeyVariable = Annotated[
    str | None,
    typer.Option(
        "--endpoint-key-env",
        metavar="VARIABLE",
        help="The environment variable that holds its key; keys are taken from nowhere else.",
        rich_help_panel=_OTHER,
    ),
]
