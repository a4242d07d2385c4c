"""Sources in a real S3 server and a real Google bucket, where the programs that serve them are installed."""

from __future__ import annotations

import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanocode.config import DataConfig, FilesSource
from nanocode.data.documents import SourceError
from nanocode.data.shards import read_documents
from steps import shard_data
from tests.servers import fake_gcs, seaweedfs, skipped_off_linux

pytestmark = pytest.mark.slow

OBJECTS = {
    f"corpus/{number % 3}/{number:03}.txt": f"document {number} of the corpus, {'x' * number}\n".encode()
    for number in range(60)
}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a bucket that holds OBJECTS."""
    with skipped_off_linux(), seaweedfs(tmp_path / "seaweedfs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        import boto3

        client = boto3.Session().client("s3")
        for key, body in OBJECTS.items():
            client.put_object(Bucket=server.bucket, Key=key, Body=body)
        yield f"s3://{server.bucket}"


@pytest.fixture
def gcs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a Google bucket that holds OBJECTS."""
    with skipped_off_linux(), fake_gcs(tmp_path / "gcs") as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("CLOUD_STORAGE_EMULATOR_ENDPOINT", server.address)
        for key, body in OBJECTS.items():
            name = urllib.parse.quote(key, safe="")
            path = f"/upload/storage/v1/b/{server.bucket}/o?uploadType=media&name={name}"
            urllib.request.urlopen(f"{server.address}{path}", body).close()
        yield f"gs://anonymous@{server.bucket}"


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


def test_a_corpus_in_a_google_bucket_is_sharded_like_one_on_disk(gcs: str, tmp_path: Path) -> None:
    check_bucket(gcs, tmp_path / "out")
