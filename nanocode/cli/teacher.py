"""`nanocode teacher`: the embedded rule-based endpoint, or a small language model, in the foreground."""

from __future__ import annotations

import socket
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nanocode.cli.context import project_root
from nanocode.constitution.soul import Soul
from nanocode.serving import smollm
from nanocode.serving import teacher as rules
from nanocode.serving.faults import FAULTS, App, Behaviour
from nanocode.serving.teacher_process import make_server

DEFAULT_PORT = 8190


class Taught(StrEnum):
    """Who answers."""

    RULES = "rules"
    SMOLLM = "smollm"


_LIMITS = "Limits and faults"


def teacher(
    model: Annotated[
        Taught, typer.Option(help="The rules, or SmolLM2-135M-Instruct (the extra `smollm`) as a generator.")
    ] = Taught.RULES,
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is open to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = DEFAULT_PORT,
    soul: Annotated[
        Path | None,
        typer.Option(help="The constitution that the critic judges by.", show_default="the project's configs/SOUL.md"),
    ] = None,
    fault_rate: Annotated[
        float, typer.Option(min=0, max=1, help="Share of attempts that meet a fault.", rich_help_panel=_LIMITS)
    ] = 0.0,
    faults: Annotated[str, typer.Option(help="Which ones, joined by commas.", rich_help_panel=_LIMITS)] = ",".join(
        FAULTS
    ),
    fault_seed: Annotated[
        int, typer.Option(help="Equal seeds give equal faults to equal requests.", rich_help_panel=_LIMITS)
    ] = 0,
    latency_seconds: Annotated[
        float, typer.Option(min=0, help="How long every answer takes.", rich_help_panel=_LIMITS)
    ] = 0.0,
    hang_seconds: Annotated[
        float, typer.Option(min=0, help="How long a `timeout` keeps its client waiting.", rich_help_panel=_LIMITS)
    ] = 60.0,
    requests_per_second: Annotated[
        float | None, typer.Option(min=1, help="Beyond it: 429 with Retry-After.", rich_help_panel=_LIMITS)
    ] = None,
    tokens_per_second: Annotated[
        float | None, typer.Option(min=1, help="The same for words of prompts.", rich_help_panel=_LIMITS)
    ] = None,
) -> None:
    """Serve the rule-based generator, critic and reviser as an OpenAI-compatible endpoint, until Ctrl-C.

    Or a real language model, which is small, drafts badly and can do no more than that:

        nanocode teacher --model smollm

    To try a client against a server that fails as real ones do, inject faults and read the bill, which counts for each
    request what was delivered, lost on the way, and refused:

        nanocode teacher --fault-rate 0.3 --faults 429,500,torn,reset

        curl http://127.0.0.1:8190/v1/_bill
    """
    named = tuple(name.strip() for name in faults.split(","))
    unknown = sorted(set(named) - set(FAULTS))
    if unknown:
        raise typer.BadParameter(f"there is no fault {unknown[0]!r}: choose from {', '.join(FAULTS)}")
    behaviour = Behaviour(
        fault_rate=fault_rate,
        faults=named,
        seed=fault_seed,
        latency_seconds=latency_seconds,
        hang_seconds=hang_seconds,
        requests_per_second=requests_per_second,
        tokens_per_second=tokens_per_second,
    )
    app, shown = _application(model, soul or project_root() / "configs" / "SOUL.md")
    server = make_server(app, None if behaviour == Behaviour() else behaviour)
    with socket.create_server((host, port)) as listener:
        shown_host, shown_port = listener.getsockname()[:2]
        Console().print(f"{shown} at http://{shown_host}:{shown_port}/v1 (ctrl-c ends it)", soft_wrap=True)
        server.run(sockets=[listener])


def _application(model: Taught, soul: Path) -> tuple[App, str]:
    """What answers, and how it is called. Raises SoulError, SmolLMError."""
    if model is Taught.SMOLLM:
        return smollm.create_app(smollm.SmolLM()), smollm.MODEL
    return rules.create_app(Soul.load(soul)), f"{rules.MODEL}, judging by {soul},"
