"""Servers on the loopback interface for sources that read from a network."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class QuietServer(ThreadingHTTPServer):
    """A client that hangs up is part of these tests and no news."""

    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        pass


@pytest.fixture
def serve() -> Iterator[Callable[[type[BaseHTTPRequestHandler]], str]]:
    """`serve(handler)` answers on a port of this machine until the test ends, and returns the address."""
    servers: list[QuietServer] = []

    def start(handler: type[BaseHTTPRequestHandler]) -> str:
        server = QuietServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()
