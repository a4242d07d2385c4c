"""A proxy on loopback that stands between a client and an HTTP server and does what networks do to requests."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "content-length", "expect"})
ERROR = "<?xml version='1.0'?><Error><Code>{code}</Code><Message>the proxy says so</Message></Error>"

# Answers of the proxy's own; the server hears nothing of the request.
REFUSALS = {
    "500": (500, "InternalError"),
    "503": (503, "SlowDown"),
    "502": (502, "BadGateway"),
    "skewed": (403, "RequestTimeTooSkewed"),
    "expired": (400, "ExpiredToken"),
}
FAULTS = (
    "500",  # InternalError
    "502",  # from something in between, without S3's words
    "503",  # SlowDown
    "reset",  # the connection is cut before the request was passed on
    "torn request",  # one byte of the body is flipped on the way to the server
    "lost answer",  # done by the server, then the connection is cut
    "500 after",  # done by the server, then answered with an error
    "reset in body",  # cut in the middle of the answer
    "truncated",  # half an answer that claims to be whole
    "stall",  # half an answer, then silence
)


def some_slow(faults: Iterable[str], fast: Iterable[str]) -> list[Any]:
    """Parameters of a test, those that are not `fast` left to `make test-slow`."""
    return [fault if fault in fast else pytest.param(fault, marks=pytest.mark.slow) for fault in faults]


@dataclass(frozen=True)
class Call:
    """A request as the proxy sees it. `attempt` counts those alike, from 1."""

    method: str
    path: str
    span: str
    attempt: int


@dataclass
class Proxy:
    """A running proxy. `plan` says what happens to a request: a word of FAULTS, "stale", or None for nothing."""

    upstream: str
    plan: Callable[[Call], str | None] = lambda call: None
    stall_seconds: float = 3.0
    address: str = ""
    calls: list[Call] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    _attempts: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    _kept: dict[str, tuple[int, list[tuple[str, str]], bytes]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def forget(self) -> None:
        """Be as new: pass everything on, and count from 1."""
        with self._lock:
            self.plan = lambda call: None
            for counted in (self.calls, self.done, self._attempts, self._kept):
                counted.clear()

    def next(self, method: str, path: str, span: str) -> str | None:
        """Count a request and say what is to happen to it."""
        path = re.sub("uploadId=[^&]*", "uploadId", path)  # a new one after each failure
        with self._lock:
            self._attempts[method, path, span] += 1
            call = Call(method, path, span, self._attempts[method, path, span])
            self.calls.append(call)
            fault = self.plan(call)
            self.done[fault or "passed"] += 1
        return fault

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, list, bytes]:
        """The server's own answer."""
        connection = http.client.HTTPConnection(urlsplit(self.upstream).netloc, timeout=60)
        try:
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in headers.items():
                if name.lower() not in HOP_BY_HOP:
                    connection.putheader(name, value)
            connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            answer = connection.getresponse()
            dropped = HOP_BY_HOP - {"content-length"} if method == "HEAD" else HOP_BY_HOP
            kept = [(name, value) for name, value in answer.getheaders() if name.lower() not in dropped]
            return answer.status, kept, answer.read()
        finally:
            connection.close()

    def stale(self, path: str, fresh: Callable[[], tuple[int, list, bytes]]) -> tuple[int, list, bytes]:
        """The first answer that was ever given to a request."""
        with self._lock:
            kept = self._kept.get(path)
        if kept is None:
            kept = fresh()
            with self._lock:
                self._kept.setdefault(path, kept)
        return kept


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    proxy: Proxy

    def log_message(self, *arguments: object) -> None:
        """Say nothing."""

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = self.proxy.next(self.command, self.path, self.headers.get("Range", ""))
        if fault in REFUSALS:
            status, code = REFUSALS[fault]
            self._answer(status, [], b"" if fault == "502" else ERROR.format(code=code).encode())
        elif fault == "reset":
            self._cut()
        else:
            if fault == "torn request" and body:
                body = bytes([body[0] ^ 1]) + body[1:]
            self._pass_on(fault, body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = relay

    def _pass_on(self, fault: str | None, body: bytes) -> None:
        def fresh() -> tuple[int, list, bytes]:
            return self.proxy.forward(self.command, self.path, dict(self.headers.items()), body)

        status, headers, content = self.proxy.stale(self.path, fresh) if fault == "stale" else fresh()
        if fault == "lost answer":
            self._cut()
        elif fault == "500 after":
            self._answer(500, [], ERROR.format(code="InternalError").encode())
        elif self.command == "HEAD":
            self._answer(status, headers, b"")
        elif fault == "truncated":
            self._answer(status, headers, content[: len(content) // 2])
        elif fault in ("reset in body", "stall"):
            self._answer(status, headers, content[: len(content) // 2], claimed=len(content) + 1)
            if fault == "stall":
                time.sleep(self.proxy.stall_seconds)
            self._cut()
        else:
            self._answer(status, headers, content)

    def _answer(self, status: int, headers: list, content: bytes, claimed: int | None = None) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(content) if claimed is None else claimed))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def _cut(self) -> None:
        """Close the connection so that the other side sees a reset."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *arguments: object) -> None:
        """Connections that clients give up are part of the play."""

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        with contextlib.suppress(OSError):
            super().shutdown_request(request)


@contextlib.contextmanager
def faulty_proxy(upstream: str) -> Iterator[Proxy]:
    """A proxy before `upstream` that passes everything on until it is told otherwise."""
    proxy = Proxy(upstream)
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), {"proxy": proxy}))
    proxy.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
