"""One real server of each kind for all these tests; every test gets a place of its own in its bucket."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from artifacts.store import ObjectStore, open_store
from tests.servers import Server, fake_gcs, seaweedfs, skipped_off_linux

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with skipped_off_linux(), seaweedfs(tmp_path_factory.mktemp("seaweedfs") / "data") as server:
        yield server


@pytest.fixture(scope="session")
def gcs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with skipped_off_linux(), fake_gcs(tmp_path_factory.mktemp("gcs") / "data") as server:
        yield server


@pytest.fixture
def s3(s3_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The S3 server, with the environment that leads there."""
    return _led_to(s3_server, monkeypatch)


@pytest.fixture
def gcs(gcs_server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The Google server, with the environment that leads there."""
    return _led_to(gcs_server, monkeypatch)


def _led_to(server: Server, monkeypatch: pytest.MonkeyPatch) -> Server:
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    return server


@pytest.fixture
def place() -> str:
    """A prefix that no other test has."""
    return f"test-{next(_numbers)}/store"


@pytest.fixture(params=["file", "s3", "gs"])
def url(request: pytest.FixtureRequest, tmp_path: Path, place: str) -> str:
    """The URL of an empty store of each kind."""
    if request.param == "file":
        return f"file:{tmp_path / 'store'}"
    server = request.getfixturevalue("s3" if request.param == "s3" else "gcs")
    return f"{request.param}://{server.bucket}/{place}"


@pytest.fixture
def store(url: str) -> ObjectStore:
    """An empty store of each kind."""
    return open_store(url)
