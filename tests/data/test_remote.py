"""Files on a server that fails: read whole or refused, never short, never mixed of two versions."""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from failing_server import FailingHandler

from nanocode.data.documents import SourceError
from nanocode.data.reading import Reading, Retry
from nanocode.data.remote import MatchedFile, find_files, local_copy

BODY = random.Random(0).randbytes(3_000_000)


class Bucket(FailingHandler):
    """The two requests of the S3 protocol that reading needs, over one bucket. `faults` befall the next requests."""

    objects: dict[str, bytes]
    faults: list[str]
    ranges: list[str | None]

    def do_GET(self) -> None:
        fault = self.faults.pop(0) if self.faults else ""
        if fault.isdigit():
            code = {"503": "SlowDown", "403": "AccessDenied"}[fault]
            self.answer(int(fault), f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())
        elif "list-type=2" in self.path:
            entries = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified>"
                f"<ETag>{self.tag(body)}</ETag><Size>{len(body)}</Size></Contents>"
                for key, body in sorted(self.objects.items())
                if key.startswith(parse_qs(urlsplit(self.path).query)["prefix"][0])
            )
            listing = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            self.answer(200, listing.encode())
        else:
            self.get(self.path.removeprefix("/bucket/"), fault)

    def get(self, key: str, fault: str) -> None:
        body = self.objects[key]
        self.ranges.append(self.headers["Range"])
        if fault == "replace":
            self.objects[key] = body = bytes(reversed(body))
        if self.headers["If-Match"] != self.tag(body):
            self.answer(412, b"<Error><Code>PreconditionFailed</Code><Message>changed</Message></Error>")
            return
        first = int((self.headers["Range"] or "bytes=0-").removeprefix("bytes=").rstrip("-"))
        headers = {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"} if first else {}
        send = (len(body) - first) // 2 if fault == "cut" else None
        self.answer(206 if first else 200, body[first:], headers, send)

    @staticmethod
    def tag(body: bytes) -> str:
        return f'"{hashlib.md5(body).hexdigest()}"'


@pytest.fixture
def bucket(serve: Callable[[type[BaseHTTPRequestHandler]], str], monkeypatch: pytest.MonkeyPatch) -> type[Bucket]:
    objects = {"data/big.bin": BODY, "data/skip.md": b"-", "data/deep/small.bin": b"second\n", "data/empty.bin": b""}
    handler = type("Bucket", (Bucket,), {"objects": objects, "faults": [], "ranges": []})
    monkeypatch.setenv("AWS_ENDPOINT_URL", serve(handler))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "nowhere-1")
    return handler


class Patience:
    """A Retry that notes its pauses in place of making them."""

    def __init__(self, max_attempts: int = 4) -> None:
        self.pauses: list[float] = []
        self.lines: list[str] = []
        self.retry = Retry(max_attempts, self.lines.append, self.pauses.append)


def found(patience: Patience, glob: str = "s3://bucket/data/**/*.bin") -> dict[str, MatchedFile]:
    return {file.origin: file for file in find_files(glob, patience.retry, "data source 'mine'")}


def read(file: MatchedFile, patience: Patience, folder: Path, **changes: Any) -> bytes:
    with local_copy(file, Reading(patience.retry, folder, **changes), "data source 'mine'") as path:
        data = path.read_bytes()
    assert list(folder.iterdir()) == [], "the copy is gone afterwards"
    return data


def test_a_glob_in_a_bucket_finds_and_reads_what_it_names(bucket: type[Bucket], tmp_path: Path) -> None:
    files = found(Patience())
    assert {name: file.size for name, file in files.items()} == {
        "big.bin": len(BODY),
        "deep/small.bin": 7,
        "empty.bin": 0,
    }
    assert {name: read(file, Patience(), tmp_path) for name, file in files.items()} == {
        "big.bin": BODY,
        "deep/small.bin": b"second\n",
        "empty.bin": b"",
    }


def test_a_read_that_was_cut_goes_on_at_the_byte_it_had_come_to(bucket: type[Bucket], tmp_path: Path) -> None:
    file, patience = found(Patience())["big.bin"], Patience(max_attempts=2)
    bucket.faults[:] = ["cut", "cut", "cut", "cut", "cut"]
    assert read(file, patience, tmp_path) == BODY
    offsets = [int((each or "bytes=0-")[6:-1]) for each in bucket.ranges]
    assert offsets == sorted(offsets) and len(set(offsets)) >= 4, "no byte is read twice"
    assert max(patience.pauses) == 1, "progress makes patience new"


def test_a_busy_server_is_asked_again_and_not_for_ever(bucket: type[Bucket], tmp_path: Path) -> None:
    bucket.faults[:] = ["503", "503"]
    patience = Patience()
    file = found(patience)["big.bin"]
    assert patience.pauses == [1, 2]
    bucket.faults[:] = ["503", "503", "503"]
    assert read(file, patience, tmp_path) == BODY
    assert patience.pauses == [1, 2, 1, 2, 4]
    assert re.fullmatch(r"big\.bin: .*SlowDown.*; trying again in 4 s \(3 of 4 attempts failed\)", patience.lines[-1])
    bucket.faults[:] = ["503"] * 9
    with pytest.raises(SourceError, match=r"^big\.bin: .*SlowDown.*; gave up after 4 attempts: .* goes on from where"):
        read(file, patience, tmp_path)
    assert len(bucket.faults) == 5, "as many requests as attempts"


def test_what_no_attempt_can_change_is_said_at_once(bucket: type[Bucket], tmp_path: Path) -> None:
    patience = Patience()
    file = found(patience)["big.bin"]
    bucket.faults[:] = ["403"]
    with pytest.raises(SourceError, match=r"cannot read big\.bin: .*AccessDenied"):
        read(file, patience, tmp_path)
    bucket.faults[:] = ["403"]
    with pytest.raises(SourceError, match=r"data source 'mine': cannot list s3://bucket/.*AccessDenied"):
        found(patience)
    with pytest.raises(SourceError, match=r"no file matches 's3://bucket/none/\*'; correct the glob"):
        found(patience, "s3://bucket/none/*")
    assert patience.pauses == []


def test_an_object_that_is_replaced_half_way_is_not_glued_together(bucket: type[Bucket], tmp_path: Path) -> None:
    patience = Patience()
    file = found(patience)["big.bin"]
    bucket.faults[:] = ["cut", "replace"]
    with pytest.raises(SourceError, match=r"cannot read big\.bin: .*was replaced while it was read; run again"):
        read(file, patience, tmp_path)


def test_bytes_that_are_not_the_manifests_are_refused(bucket: type[Bucket], tmp_path: Path) -> None:
    patience = Patience()
    file = found(patience)["big.bin"]
    assert read(file, patience, tmp_path, sha256={"big.bin": file.sha256(patience.retry)}) == BODY
    bucket.objects["data/big.bin"] = BODY[:-1] + b"!"
    with pytest.raises(SourceError, match=r"big\.bin has sha256 \w+, in the manifest of this run 0+: it changed"):
        read(found(patience)["big.bin"], patience, tmp_path, sha256={"big.bin": "0" * 64})


def test_missing_credentials_name_the_variables(
    bucket: type[Bucket], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "absent"))
    with pytest.raises(SourceError, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        found(Patience())


def test_an_unknown_scheme_is_one_clear_line() -> None:
    with pytest.raises(SourceError, match=r"^data source 'mine': cannot open ftp://host/x/\*: .*ftp"):
        found(Patience(), "ftp://host/x/*")
