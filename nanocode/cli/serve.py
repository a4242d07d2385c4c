"""`nanocode serve`: a model as an OpenAI-compatible server with a chat page, in the foreground."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from nanocode.cli.context import StoreOption

if TYPE_CHECKING:
    from nanocode.cli.model_loading import LoadedModel
    from nanocode.serving.faults import App
    from nanocode.serving.gate import Access

DEFAULT_PORT = 8000
BACKLOG = 128
STOP_SECONDS = 5
_TRAFFIC = "Traffic"


def serve(
    context: typer.Context,
    model: Annotated[str, typer.Argument(help="Release (nano, nano@3), digest prefix or folder.")],
    host: Annotated[str, typer.Option(help="Address to listen on; any but loopback needs --token-env.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65_535, help="0 takes a free one.")] = DEFAULT_PORT,
    token_variable: Annotated[
        str | None,
        typer.Option("--token-env", metavar="NAME", help="Environment variable with the token that clients must send."),
    ] = None,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Replies that may wait; beyond: 429.", rich_help_panel=_TRAFFIC)
    ] = 64,
    live: Annotated[
        int,
        typer.Option(min=1, help="Conversations streamed side by side, each with a cache.", rich_help_panel=_TRAFFIC),
    ] = 4,
    store: StoreOption = None,
) -> None:
    """Serve a model as an OpenAI-compatible endpoint with a chat page, until Ctrl-C.

    It answers /v1/models and /v1/chat/completions (whole or streamed, with the tools that the model was trained on),
    /healthz, and shows a page to chat at /:

        curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' -d '{"model": "nano",
        "temperature": 0, "messages": [{"role": "user", "content": "hello"}]}'
    """
    access = _access(host, token_variable, os.environ)
    listener = _listener(host, port)

    from nanocode.cli.model_loading import load_named

    console = Console(stderr=True, highlight=False)
    with listener:
        with console.status(f"loading and compiling {model}"):
            loaded = load_named(model, store or context.obj.store)
            app = make_app(loaded, access, max_waiting=max_waiting, live=live)
        shown_host, shown_port = listener.getsockname()[:2]
        address = f"[{shown_host}]" if ":" in shown_host else shown_host
        asks = "no token" if access.token is None else f"the token in {token_variable}"
        console.print(
            f"{loaded.found.label} at http://{address}:{shown_port}/v1, chat page at http://{address}:{shown_port}/ "
            f"({asks}; ctrl-c ends it)",
            soft_wrap=True,
        )
        _run(app, listener)


def make_app(loaded: LoadedModel, access: Access, *, max_waiting: int, live: int) -> App:
    """The server's application over a loaded model, which answers to its label, its name and its whole digest."""
    from nanocode.serving.engine_work import EngineWork
    from nanocode.serving.scheduler import Scheduler
    from nanocode.serving.server import ChatServer, Served

    work, found = EngineWork(loaded.engine), loaded.found
    work.warm_up()
    scheduler = Scheduler(work.make_live, work.batch, max_waiting=max_waiting, live_seats=live)
    names = frozenset(filter(None, (found.name, found.digest)))
    engine = loaded.engine
    served = Served(found.label, names, found.digest, engine.tokenizer, engine.context_tokens)
    return ChatServer(served, scheduler).app(access)


def _access(host: str, token_variable: str | None, environment: Mapping[str, str]) -> Access:
    from nanocode.serving.gate import Access, UnsafeAddress

    token = None
    if token_variable is not None:
        token = environment.get(token_variable)
        if not token:
            raise typer.BadParameter(
                f"the environment variable {token_variable} is not set: put the token there", param_hint="--token-env"
            )
    try:
        return Access.at(host, token)
    except UnsafeAddress as error:
        raise typer.BadParameter(str(error), param_hint="--host") from None


def _listener(host: str, port: int) -> socket.socket:
    """Bound before the model is loaded: an address that is taken shows at once."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = error.strerror or error
        raise typer.BadParameter(
            f"cannot listen on {host}:{port}: {reason}: choose another", param_hint="--port"
        ) from None


def _run(app: App, listener: socket.socket) -> None:
    import uvicorn

    settings = uvicorn.Config(app, access_log=False, log_level="warning", timeout_graceful_shutdown=STOP_SECONDS)
    uvicorn.Server(settings).run(sockets=[listener])
