"""Preemption notices, from a metadata server on the loopback that answers as the clouds' do."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from steps.notices import (
    AWS_ENDPOINT,
    GCE_HOST,
    AmazonMetadata,
    GoogleMetadata,
    NoticeFile,
    source_of,
    watch,
)


class Metadata(BaseHTTPRequestHandler):
    """Both clouds' services. `preempted` and `documents` are what they have to say."""

    preempted: str
    documents: dict[str, str]
    tokens: set[str]
    asked: list[str]
    changed: threading.Condition

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.asked.append(self.path)
        if url.path == "/computeMetadata/v1/instance/preempted":
            self._google({name: values[0] for name, values in parse_qs(url.query).items()})
        elif self.headers.get("X-aws-ec2-metadata-token") not in self.tokens:
            self._answer(401, "")
        else:
            document = self.documents.get(url.path.removeprefix("/latest/meta-data/"))
            self._answer(404 if document is None else 200, document or "")

    def do_PUT(self) -> None:
        self.asked.append(self.path)
        assert self.path == "/latest/api/token"
        assert int(self.headers["X-aws-ec2-metadata-token-ttl-seconds"]) <= 21_600
        token = f"token-{time.monotonic_ns()}"
        self.tokens.add(token)
        self._answer(200, token)

    def _google(self, query: dict[str, str]) -> None:
        if self.headers.get("Metadata-Flavor") != "Google":
            self._answer(403, "")
            return
        with self.changed:
            if query.get("wait_for_change") == "true":
                same = query["last_etag"]
                self.changed.wait_for(lambda: etag(self.preempted) != same, float(query["timeout_sec"]))
            self._answer(200, self.preempted, {"Metadata-Flavor": "Google", "ETag": etag(self.preempted)})

    def _answer(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *arguments: Any) -> None:
        del arguments


def etag(value: str) -> str:
    return value.encode().hex()


@pytest.fixture
def metadata() -> Iterator[Any]:
    members = {"preempted": "FALSE", "documents": {}, "tokens": set(), "asked": [], "changed": threading.Condition()}
    handler = type("Handler", (Metadata,), members)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    handler.host = f"127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield handler
    with handler.changed:
        handler.changed.notify_all()
    server.shutdown()
    server.server_close()


def heard(source: Any, sleeps: int = 3) -> tuple[list[str], int]:
    """What `watch` says before it has slept so often, and how many stops it requests."""
    said: list[str] = []
    stops: list[bool] = []

    class Enough(Exception):
        pass

    def sleep(seconds: float) -> None:
        nonlocal sleeps
        sleeps -= 1
        if not sleeps:
            raise Enough

    with contextlib.suppress(Enough):
        watch(source, lambda: stops.append(True), said.append, sleep)
    return said, len(stops)


def test_google_a_machine_that_was_preempted_before_anybody_asked_is_noticed(metadata: Any) -> None:
    metadata.preempted = "TRUE"
    source = source_of("gce", {GCE_HOST: metadata.host})
    assert heard(source) == (["preempted: Google preempts this machine; saving what there is"], 1)


def test_google_the_wait_ends_with_the_change(metadata: Any) -> None:
    source = GoogleMetadata(metadata.host)
    assert source.look() is None
    found: list[str | None] = []
    waiting = threading.Thread(target=lambda: found.append(source.look()))
    waiting.start()
    while len(metadata.asked) < 2:
        time.sleep(0.005)
    assert found == []
    with metadata.changed:
        metadata.preempted = "TRUE"
        metadata.changed.notify_all()
    waiting.join(5)
    assert found == ["Google preempts this machine"]
    assert f"last_etag={etag('FALSE')}" in metadata.asked[1]


def test_amazon_an_interruption_is_noticed_with_its_time(metadata: Any) -> None:
    source = source_of("aws", {AWS_ENDPOINT: f"http://{metadata.host}"})
    assert source.look() is None
    metadata.documents["spot/instance-action"] = '{"action": "terminate", "time": "2030-01-01T00:02:00Z"}'
    assert source.look() == "Amazon will terminate this machine at 2030-01-01T00:02:00Z"
    assert metadata.asked.count("/latest/api/token") == 1


def test_amazon_a_recommendation_counts_when_it_is_news(metadata: Any) -> None:
    source = AmazonMetadata(f"http://{metadata.host}")
    assert source.look() is None
    metadata.documents["events/recommendations/rebalance"] = '{"noticeTime": "2030-01-01T00:00:00Z"}'
    assert source.look() == "Amazon recommends to leave this machine"
    started_later = AmazonMetadata(f"http://{metadata.host}")
    assert [started_later.look(), started_later.look()] == [None, None]


def test_amazon_a_token_that_ran_out_is_replaced(metadata: Any) -> None:
    source = AmazonMetadata(f"http://{metadata.host}")
    source.look()
    metadata.tokens.clear()
    metadata.documents["spot/instance-action"] = '{"action": "stop", "time": "soon"}'
    assert source.look() == "Amazon will stop this machine at soon"


def test_a_file_counts_when_it_appears_or_changes_and_not_for_what_it_held_before(tmp_path: Path) -> None:
    path = tmp_path / "notice"
    source = source_of(f"file:{path}", {})
    assert source.look() is None
    path.write_text("\n")
    assert source.look() is None
    path.write_text("drained\nby hand\n")
    assert source.look() == f"{path} says: drained by hand"
    assert NoticeFile(path).look() is None
    later = NoticeFile(path)
    path.write_text("drained again")
    assert later.look() == f"{path} says: drained again"


def closed_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["gce", "aws"])
def test_a_server_that_is_down_is_named_once_and_asked_again(kind: str) -> None:
    address = closed_address()
    source = source_of(kind, {GCE_HOST: address, AWS_ENDPOINT: f"http://{address}"})
    said, stops = heard(source, sleeps=4)
    assert stops == 0
    (line,) = said
    assert "the run goes on without them" in line
    assert "Connection refused" in line


@pytest.mark.parametrize("kind", ["gce", "aws"])
def test_a_server_that_is_none_of_theirs_harms_nothing(kind: str) -> None:
    """A captive page, as some networks answer for every name."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            for _ in range(3):
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return  # closed: nobody asks any more
                connection.recv(4096)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nTRUE")
                connection.close()

        threading.Thread(target=serve, daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        source = source_of(kind, {GCE_HOST: address, AWS_ENDPOINT: f"http://{address}"})
        said, stops = heard(source, sleeps=1)
    assert stops == 0
    assert len(said) == 1


def test_nothing_is_watched_unless_the_config_says_so() -> None:
    assert source_of("none", {}) is None
