"""Files by glob: names, rows, order, and one-line errors."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanocode.config import FilesSource
from nanocode.data import file_sources
from nanocode.data.documents import SourceError
from nanocode.data.file_sources import file_documents, matched_files


def source(glob: Path | str, **changes: Any) -> FilesSource:
    values = {
        "name": "mine",
        "register_as": "text",
        "kind": "files",
        "glob": str(glob),
        "licence": "CC0-1.0",
        **changes,
    }
    return FilesSource.model_validate(values)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a" / "deep").mkdir(parents=True)
    (tmp_path / "a" / "one.txt").write_text("first file\n")
    (tmp_path / "a" / "deep" / "two.txt").write_text("second file\n")
    (tmp_path / "a" / "three.md").write_text("third file\n")
    return tmp_path


@pytest.mark.parametrize(
    ("pattern", "origins"),
    [
        ("a/*.txt", ["one.txt"]),
        ("a/**/*.txt", ["deep/two.txt", "one.txt"]),
        ("**/*", ["a/deep/two.txt", "a/one.txt", "a/three.md"]),
        ("a/one.txt", ["one.txt"]),
        ("?/*.[mt]*", ["a/one.txt", "a/three.md"]),
        ("a/**/t*", ["deep/two.txt", "three.md"]),
        ("a/d???/*", ["deep/two.txt"]),
        ("a/[!d]*?e.*", ["one.txt", "three.md"]),
    ],
)
def test_globs_name_files_relative_to_their_fixed_part(folder: Path, pattern: str, origins: list[str]) -> None:
    assert [file.origin for file in matched_files(source(folder / pattern))] == origins
    uri = source(f"file://{folder}/{pattern}")
    assert [file.origin for file in matched_files(uri)] == origins, "a URL goes the same way"


def test_a_relative_glob_starts_at_the_working_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    [document] = file_documents(source("a/*.md"))
    assert (document.content, document.origin, document.licence, document.group) == (
        b"third file\n",
        "three.md",
        "CC0-1.0",
        "three.md",
    )


def test_a_glob_without_matches_is_one_clear_line(folder: Path) -> None:
    for pattern in (folder / "*.parquet", folder / "missing" / "*.txt", folder / "*?one.txt"):
        with pytest.raises(SourceError, match=r"^data source 'mine': no file matches .*; correct data.sources glob$"):
            matched_files(source(pattern))


def test_parquet_rows_are_numbered_through_the_file_whatever_their_order(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(50)]
    pq.write_table(pa.table({"body": texts, "id": range(50)}), tmp_path / "x.parquet", row_group_size=8)
    documents = list(file_documents(source(tmp_path / "*.parquet", text_column="body")))
    assert {document.origin: document.content for document in documents} == {
        f"x.parquet#{number}": text for number, text in enumerate(texts)
    }
    assert [document.content for document in documents] != texts, "taken by hash, not in file order"
    assert documents == list(file_documents(source(tmp_path / "*.parquet", text_column="body")))


def test_jsonl_rows_keep_their_line_numbers_and_name_their_faults(tmp_path: Path) -> None:
    lines = [
        json.dumps({"text": "naïve \u2028 text"}, ensure_ascii=False).encode(),
        b"",
        b'{"text": "torn',
        b'{"text": "caf\xe9"}',
        b'{"text": null}',
        b'{"text": 7}',
        b'{"text": "last, without a line end"}',
    ]
    (tmp_path / "x.jsonl").write_bytes(b"\n".join(lines))
    found = {
        document.origin: (document.content, document.fault) for document in file_documents(source(tmp_path / "x.jsonl"))
    }
    assert found == {
        "x.jsonl#0": ("naïve \u2028 text", None),
        "x.jsonl#2": (b"", "unparsable"),
        "x.jsonl#3": (lines[3], None),
        "x.jsonl#4": (b"", None),
        "x.jsonl#5": (b"", "not_text"),
        "x.jsonl#6": ("last, without a line end", None),
    }


def test_jsonl_blocks_lose_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sources, "BLOCK_BYTES", 100)
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"text": f"row {n}"}) + "\n" for n in range(60)))
    documents = list(file_documents(source(tmp_path / "x.jsonl")))
    assert sorted(int(document.origin.partition("#")[2]) for document in documents) == list(range(60))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_missing_column_names_those_there_are(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pq.write_table(pa.table({"body": ["x"], "id": [1]}), tmp_path / "x.parquet")
    else:
        (tmp_path / "x.jsonl").write_text('{"id": 1, "body": "x"}\n')
    with pytest.raises(SourceError, match=r"x\..* has no column 'text'; set text_column to one of: body, id"):
        list(file_documents(source(tmp_path / f"*.{suffix}")))


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(SourceError, match=r"data source 'mine': cannot read x\.parquet: "):
        list(file_documents(source(tmp_path / "*.parquet")))


class Bucket(BaseHTTPRequestHandler):
    """The two requests of the S3 protocol that reading needs, over one small bucket."""

    protocol_version = "HTTP/1.1"
    objects: ClassVar = {
        "data/one.txt": b"first object\n",
        "data/skip.md": b"no match\n",
        "data/deep/two.txt": b"second\n",
    }

    def do_GET(self) -> None:
        if "list-type=2" in self.path:
            entries = "".join(
                f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>e</ETag>"
                f"<Size>{len(body)}</Size></Contents>"
                for key, body in sorted(self.objects.items())
            )
            listing = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            self.answer(200, listing.encode())
        else:
            body = self.objects[self.path.removeprefix("/bucket/")]
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            self.answer(206, body[int(first) : int(last) + 1])

    def do_HEAD(self) -> None:
        self.answer(200, self.objects[self.path.removeprefix("/bucket/")], send_body=False)

    def answer(self, status: int, body: bytes, send_body: bool = True) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if send_body:
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Keep the test's output clean."""


def test_globs_in_an_s3_bucket_read_through_the_configured_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Bucket) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "nowhere-1")
        documents = {
            document.origin: document.content for document in file_documents(source("s3://bucket/data/**/*.txt"))
        }
        server.shutdown()
    assert documents == {"one.txt": b"first object\n", "deep/two.txt": b"second\n"}
