"""Notices that this machine is about to be taken away, as clouds give them: each becomes a stop request.

    gce        the metadata server's instance/preempted (30 seconds ahead)
    aws        the metadata service's spot instance-action (2 minutes ahead) and rebalance recommendation (sooner)
    file:PATH  a file that appears or changes: a Kubernetes downward-API file, or what a sidecar writes

Kubernetes itself sends SIGTERM, which needs no watching. A notice is a bonus: without one, the machine's end is a kill
like any other, and what counts is the last checkpoint. So nothing here may harm a run: a server that does not answer
is named once and asked again.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

GCE_HOST = "GCE_METADATA_HOST"
"""Environment variable that Google's libraries read: host[:port] of another metadata server."""
AWS_ENDPOINT = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
"""Environment variable that Amazon's libraries read: the address of another metadata service."""

_GCE_DEFAULT, _AWS_DEFAULT = "metadata.google.internal", "http://169.254.169.254"
_TIMEOUT_SECONDS = 5.0
_POLL_SECONDS = 2.0
_LONGEST_WAIT_SECONDS = 60
_TOKEN_SECONDS = 21_600
_RETRY_SECONDS = 30.0


class Source(Protocol):
    """Where notices come from."""

    def look(self) -> str | None:
        """The notice, for people to read, or None as long as there is none; may wait a while for one.

        Raises OSError, HTTPException or ValueError when nobody answers, or not as such a source does.
        """


class GoogleMetadata:
    """The flag that Compute Engine raises when it preempts a machine.

    The server holds a request back until the value is another than the one that `last_etag` names, so a machine that is
    preempted before anybody asks is seen by the first request, which names none.
    """

    def __init__(self, host: str) -> None:
        self._host = host
        self._seen = ""

    def look(self) -> str | None:
        path, timeout = "/computeMetadata/v1/instance/preempted", _TIMEOUT_SECONDS
        if self._seen:
            path += f"?wait_for_change=true&last_etag={self._seen}&timeout_sec={_LONGEST_WAIT_SECONDS}"
            timeout += _LONGEST_WAIT_SECONDS
        status, headers, text = _request(self._host, "GET", path, {"Metadata-Flavor": "Google"}, timeout)
        if status != 200 or headers.get("metadata-flavor") != "Google":
            raise ValueError(f"status {status}, not the answer of a metadata server")
        self._seen = headers.get("etag", "")
        return "Google preempts this machine" if text.strip() == "TRUE" else None


class AmazonMetadata:
    """Spot interruptions and rebalance recommendations, by the second version of the metadata service.

    A recommendation that stood already at the first look is no news: it would stop every run on this machine.
    """

    def __init__(self, endpoint: str) -> None:
        self._host = urlsplit(endpoint).netloc
        self._token = ""
        self._standing: list[str | None] = []

    def look(self) -> str | None:
        action = self._read("spot/instance-action")
        if action is not None:
            document = json.loads(action)
            return f"Amazon will {document.get('action', 'stop')} this machine at {document.get('time', 'any moment')}"
        recommendation = self._read("events/recommendations/rebalance")
        self._standing = self._standing or [recommendation]
        return "Amazon recommends to leave this machine" if recommendation not in (None, *self._standing) else None

    def _read(self, name: str) -> str | None:
        """A document of the service; None when there is none. A token that ran out is asked for again."""
        for _ in range(2):
            if not self._token:
                headers = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECONDS)}
                status, _, self._token = _request(self._host, "PUT", "/latest/api/token", headers)
                if status != 200:
                    self._token = ""
                    raise ValueError(f"status {status} instead of a token")
            headers = {"X-aws-ec2-metadata-token": self._token}
            status, _, text = _request(self._host, "GET", f"/latest/meta-data/{name}", headers)
            if status != 401:
                break
            self._token = ""
        if status not in (200, 404):
            raise ValueError(f"status {status} for {name}")
        return text if status == 200 else None


class NoticeFile:
    """A file that is not empty and was not so, or held something else, at the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = self._content()

    def look(self) -> str | None:
        content = self._content()
        return f"{self._path} says: {' '.join(content.split())[:200]}" if content not in ("", self._before) else None

    def _content(self) -> str:
        try:
            return self._path.read_text(encoding="utf-8", errors="replace").strip()
        except FileNotFoundError:
            return ""


def source_of(preemption: str, environment: Mapping[str, str]) -> Source | None:
    """The source that `compute.preemption` names; None for "none"."""
    kind, _, path = preemption.partition(":")
    if kind == "gce":
        return GoogleMetadata(environment.get(GCE_HOST, _GCE_DEFAULT))
    if kind == "aws":
        return AmazonMetadata(environment.get(AWS_ENDPOINT, _AWS_DEFAULT))
    return NoticeFile(Path(path)) if kind == "file" else None


def watch(
    source: Source,
    request_stop: Callable[[], object],
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Look until there is a notice, say it, and request the stop. Never raises what a source raises."""
    warned = False
    while True:
        pause = _POLL_SECONDS
        try:
            if notice := source.look():
                say(f"preempted: {notice}; saving what there is")
                request_stop()
                return
        except (OSError, http.client.HTTPException, ValueError) as error:
            pause = _RETRY_SECONDS
            if not warned:
                say(f"no preemption notices for now ({type(source).__name__}: {error}); the run goes on without them")
            warned = True
        sleep(pause)


def watch_in_background(
    preemption: str, environment: Mapping[str, str], request_stop: Callable[[], object], say: Callable[[str], None]
) -> None:
    """Start `watch` on what `compute.preemption` names, if anything."""
    source = source_of(preemption, environment)
    if source is not None:
        threading.Thread(target=watch, args=(source, request_stop, say), name="notices", daemon=True).start()


def _request(
    host: str, method: str, path: str, headers: Mapping[str, str], timeout: float = _TIMEOUT_SECONDS
) -> tuple[int, Mapping[str, str], str]:
    """Status, headers (lower case) and text. Straight to the host: what stands in proxy settings is not the machine."""
    connection = http.client.HTTPConnection(host, timeout=timeout)
    try:
        connection.request(method, path, headers=dict(headers))
        answer = connection.getresponse()
        text = answer.read(65_536).decode("utf-8", errors="replace")
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, text
    finally:
        connection.close()
