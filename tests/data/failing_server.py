"""What the handlers of servers that fail have in common: whole answers, and answers that break off."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler


class FailingHandler(BaseHTTPRequestHandler):
    """A base for handlers that say what they answer, and how much of it they send."""

    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes, headers: dict[str, str] | None = None, send: int | None = None) -> None:
        """Announce the whole body; with `send`, break off after so many bytes of it."""
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body if send is None else body[:send])
        if send is not None:
            self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        """Keep the test's output clean."""
