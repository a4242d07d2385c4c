"""Files by glob: names, rows, order, and one-line errors."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.config import FilesSource
from nanocode.data import file_sources
from nanocode.data.documents import RawDocument, SourceError
from nanocode.data.file_sources import file_blocks, matched_files
from nanocode.data.reading import Block, Reading, Retry


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


def blocks(files: FilesSource, **changes: Any) -> list[Block]:
    reading = Reading(Retry(max_attempts=1), Path("/nonexistent"), changes.pop("sha256", None))
    return list(file_blocks(files, reading, **changes))


def file_documents(files: FilesSource) -> list[RawDocument]:
    return [document for block in blocks(files) for document in block.documents]


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
    assert [file.origin for file in matched_files(source(folder / pattern), Retry())] == origins
    uri = source(f"file://{folder}/{pattern}")
    assert [file.origin for file in matched_files(uri, Retry())] == origins, "a URL goes the same way"


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
        with pytest.raises(SourceError, match=r"^data source 'mine': no file matches .*; correct the glob$"):
            matched_files(source(pattern), Retry())


def test_parquet_rows_are_numbered_through_the_file_whatever_their_order(tmp_path: Path) -> None:
    texts = [f"document {number}" for number in range(50)]
    pq.write_table(pa.table({"body": texts, "id": range(50)}), tmp_path / "x.parquet", row_group_size=8)
    documents = file_documents(source(tmp_path / "*.parquet", text_column="body"))
    assert {document.origin: document.content for document in documents} == {
        f"x.parquet#{number}": text for number, text in enumerate(texts)
    }
    assert [document.content for document in documents] != texts, "taken by hash, not in file order"
    assert documents == (file_documents(source(tmp_path / "*.parquet", text_column="body")))


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
    documents = file_documents(source(tmp_path / "x.jsonl"))
    assert sorted(int(document.origin.partition("#")[2]) for document in documents) == list(range(60))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_missing_column_names_those_there_are(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pq.write_table(pa.table({"body": ["x"], "id": [1]}), tmp_path / "x.parquet")
    else:
        (tmp_path / "x.jsonl").write_text('{"id": 1, "body": "x"}\n')
    with pytest.raises(SourceError, match=r"x\..* has no column 'text'; set text_column to one of: body, id"):
        (file_documents(source(tmp_path / f"*.{suffix}")))


def test_a_damaged_parquet_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "x.parquet").write_bytes(b"not parquet at all")
    with pytest.raises(SourceError, match=r"data source 'mine': cannot read x\.parquet: "):
        (file_documents(source(tmp_path / "*.parquet")))


def jsonl(count: int) -> bytes:
    return b"".join(json.dumps({"text": f"row {number}"}).encode() + b"\n" for number in range(count))


def compressed(data: bytes, codec: str) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


def test_compressed_lines_are_the_same_documents_as_plain_ones(tmp_path: Path) -> None:
    data = jsonl(500)
    (tmp_path / "x.jsonl").write_bytes(data)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(data[:99]) + gzip.compress(data[99:]))
    (tmp_path / "x.jsonl.zst").write_bytes(compressed(data, "zstd"))
    plain, *others = [
        {document.origin.partition("#")[2]: document.content for document in file_documents(source(tmp_path / name))}
        for name in ("x.jsonl", "x.jsonl.gz", "x.jsonl.zst")
    ]
    assert len(plain) == 500 and others == [plain, plain]


@pytest.mark.parametrize("codec", ["gzip", "zstd"])
def test_a_compressed_file_that_was_cut_is_named(tmp_path: Path, codec: str) -> None:
    path = tmp_path / ("x.jsonl.gz" if codec == "gzip" else "x.jsonl.zst")
    whole = compressed(jsonl(5_000), codec)
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SourceError, match=r"cannot read x\.jsonl\..*: Truncated"):
        file_documents(source(path))


@pytest.mark.parametrize("name", ["x.parquet", "x.jsonl", "notes.txt"])
def test_reading_goes_on_at_every_block_as_if_it_had_not_stopped(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_sources, "BLOCK_BYTES", 300)
    monkeypatch.setattr(file_sources, "BLOCK_ROWS", 7)
    texts = [f"document {number}" for number in range(40)]
    for copy in range(3):
        path = tmp_path / f"{copy}{name}"
        if name == "x.parquet":
            pq.write_table(pa.table({"text": texts}), path, row_group_size=20)
        elif name == "x.jsonl":
            path.write_bytes(jsonl(40))
        else:
            path.write_text(f"text {copy}")
    files = source(tmp_path / "*")
    whole = blocks(files)
    assert len(whole) >= 3
    for done, block in enumerate(whole, 1):
        state = json.loads(json.dumps(block.after))
        assert blocks(files, start=state) == whole[done:]


def test_a_file_that_is_not_the_one_in_the_manifest_is_refused(folder: Path) -> None:
    files = source(folder / "a" / "*")
    digests = {file.origin: file.sha256(Retry()) for file in matched_files(files, Retry())}
    assert len(blocks(files, sha256=digests)) == 2
    (folder / "a" / "one.txt").write_text("first file!\n")
    with pytest.raises(
        SourceError, match=r"one\.txt has sha256 \w{64}, in the manifest of this run \w{64}: it changed"
    ):
        blocks(files, sha256=digests)
    del digests["three.md"]
    with pytest.raises(SourceError, match=r"in the manifest of this run"):
        blocks(files, sha256=digests)


def test_two_columns_of_one_name_are_not_guessed_at(tmp_path: Path) -> None:
    table = pa.table([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"x\.parquet has 2 columns 'text': rename"):
        file_documents(source(tmp_path / "x.parquet"))
    (tmp_path / "x.jsonl").write_text('{"text": "a", "text": "b"}\n{"text": "c", "meta": {"k": 1, "k": 2}}\n')
    documents = file_documents(source(tmp_path / "x.jsonl"))
    assert [document.fault for document in documents] == ["duplicate_column"] * 2


def test_a_line_or_file_too_long_to_hold_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_sources, "LINE_BYTES", 1_000)
    monkeypatch.setattr(file_sources, "_READ_BYTES", 64)
    long = json.dumps({"text": "x" * 5_000})
    (tmp_path / "x.jsonl").write_text(f'{{"text": "a"}}\n{long}\n{{"text": "b"}}\n{long}')
    found = {
        document.origin: (document.content, document.fault) for document in file_documents(source(tmp_path / "x.jsonl"))
    }
    assert found == {
        "x.jsonl#0": ("a", None),
        "x.jsonl#1": (b"", "too_long"),
        "x.jsonl#2": ("b", None),
        "x.jsonl#3": (b"", "too_long"),
    }
    monkeypatch.setattr(file_sources, "BLOCK_BYTES", 10)
    (tmp_path / "x.txt").write_text("eleven bytes")
    assert [document.fault for document in file_documents(source(tmp_path / "x.txt"))] == ["too_long"]


def test_a_row_carries_its_own_licence_and_others_are_left_out(tmp_path: Path) -> None:
    licences = ["MIT", ["mit", "Apache-2.0"], ["GPL-3.0"], [], None, ["MIT", "GPL-3.0"], ""]
    listed = [[value] if isinstance(value, str) else value for value in licences]
    pq.write_table(pa.table({"text": [str(n) for n in range(7)], "found": listed}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"text": str(n), "found": value}) + "\n" for n, value in enumerate(licences))
    )
    for name in ("x.parquet", "x.jsonl"):
        rows = source(tmp_path / name, licence="per file", licence_column="found", licences=["MIT", "apache-2.0"])
        found = {str(document.content): (document.licence, document.fault) for document in file_documents(rows)}
        assert found == {
            "0": ("MIT", None),
            "1": ("Apache-2.0 AND mit", None),
            "2": ("GPL-3.0", "licence_not_allowed"),
            "3": ("per file", "no_licence"),
            "4": ("per file", "no_licence"),
            "5": ("GPL-3.0 AND MIT", "licence_not_allowed"),
            "6": ("per file", "no_licence"),
        }
    any_licence = file_documents(source(tmp_path / "x.parquet", licence="per file", licence_column="found"))
    assert sorted(document.fault or "" for document in any_licence) == [""] * 4 + ["no_licence"] * 3


def test_a_missing_licence_column_names_those_there_are(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x"], "found": ["MIT"]}), tmp_path / "x.parquet")
    with pytest.raises(SourceError, match=r"no column 'license'; set licence_column to one of: found, text"):
        file_documents(source(tmp_path / "x.parquet", licence_column="license"))


@given(st.lists(st.binary(max_size=12), max_size=12), st.integers(1, 9), st.booleans())
def test_lines_are_those_between_line_feeds_however_they_arrive(
    lines: list[bytes], chunk_bytes: int, ends: bool
) -> None:
    data = b"\n".join(lines) + b"\n" * ends
    stream = io.BytesIO(data)
    chunked = SimpleNamespace(read=lambda wanted: stream.read(min(wanted, chunk_bytes)))
    expected = data.split(b"\n")
    assert list(file_sources._lines(chunked)) == (expected[:-1] if expected[-1] == b"" else expected)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_a_star_takes_the_whole_row_as_json(tmp_path: Path, ending: str) -> None:
    rows = [{"question": "why \u2028?", "turns": [{"role": "user"}], "n": number, "lic": "MIT"} for number in range(3)]
    if ending == "jsonl":
        (tmp_path / "x.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    for changes, licence in (({}, "CC0-1.0"), ({"licence_column": "lic"}, "MIT")):
        found = file_documents(source(tmp_path / f"x.{ending}", text_column="*", **changes))
        assert {row.licence for row in found} == {licence}
        assert sorted((json.loads(row.content) for row in found), key=lambda row: row["n"]) == rows
        assert sorted(row.origin for row in found) == [f"x.{ending}#{number}" for number in range(3)]
