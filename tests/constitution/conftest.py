import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

Reply = tuple[int, dict[str, str], str]


class FakeEndpoint:
    """A loopback server that answers by a function of (number of the request, its JSON body) and keeps what it saw."""

    def __init__(self, answer: Callable[[int, dict[str, Any]], Reply]) -> None:
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.closing = threading.Event()
        self._answer = answer
        self.base_url = ""

    def handle(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["content-length"])))
        self.seen.append(body)
        self.headers.append({name.lower(): value for name, value in handler.headers.items()})
        status, headers, text = self._answer(len(self.seen), body)
        payload = text.encode()
        handler.send_response_only(status)
        for name, value in {"content-type": "application/json", **headers}.items():
            handler.send_header(name, value)
        handler.send_header("content-length", str(len(payload)))
        handler.end_headers()
        handler.wfile.write(payload)

    def hang(self) -> Reply:
        """Keep the client waiting until the test ends."""
        self.closing.wait(10)
        return 200, {}, "{}"


@pytest.fixture
def fake_endpoint() -> Iterator[Callable[..., Any]]:
    """A context manager that serves one FakeEndpoint."""

    @contextmanager
    def serve(answer: Callable[[int, dict[str, Any]], Reply]) -> Iterator[FakeEndpoint]:
        fake = FakeEndpoint(answer)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                try:
                    fake.handle(self)
                except (BrokenPipeError, ConnectionResetError):
                    self.close_connection = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        fake.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield fake
        finally:
            fake.closing.set()
            server.shutdown()
            server.server_close()

    yield serve
