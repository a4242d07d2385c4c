"""`nanocode teacher`: the embedded rule-based endpoint, in the foreground."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from nanocode.serving.teacher import MODEL
from nanocode.serving.teacher_process import make_server

DEFAULT_PORT = 8190


def teacher(
    host: Annotated[
        str, typer.Option(help="Address to listen on; anything but loopback is open to others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = DEFAULT_PORT,
    soul: Annotated[Path, typer.Option(help="The constitution that the critic judges by.")] = Path("configs/SOUL.md"),
) -> None:
    """Serve the rule-based generator, critic and reviser as an OpenAI-compatible endpoint, until Ctrl-C."""
    server = make_server(soul)
    with socket.create_server((host, port)) as listener:
        shown_host, shown_port = listener.getsockname()[:2]
        Console().print(
            f"{MODEL} at http://{shown_host}:{shown_port}/v1, judging by {soul} (ctrl-c ends it)", soft_wrap=True
        )
        server.run(sockets=[listener])
