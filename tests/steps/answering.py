"""An endpoint in the tests' own process, that says what it is told to."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Reply = tuple[int, bytes]


@contextlib.contextmanager
def answering(post: Callable[[bytes, str], Reply], get: Callable[[], Reply] = lambda: (404, b"{}")) -> Iterator[str]:
    """A server on loopback; yields its base URL.

    `post(body, authorization)`, asked one request at a time, and `get()` give status and payload.
    """
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            with lock:
                reply = post(body, self.headers.get("authorization", ""))
            self.send(*reply)

        def do_GET(self) -> None:
            self.send(*get())

        def send(self, status: int, payload: bytes) -> None:
            self.send_response_only(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    server.server_close()
