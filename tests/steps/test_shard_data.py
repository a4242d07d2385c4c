"""The stage that shards a source, as a user meets it."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from nanocode.config import AnySource, DataConfig
from nanocode.data.documents import SourceError
from nanocode.data.shards import read_documents, read_texts
from steps import shard_data


def config(glob: str, max_bytes: int | None = None, **changes: Any) -> tuple[DataConfig, AnySource]:
    source = {"name": "mine", "kind": "files", "register_as": "text", "glob": glob, "licence": "CC0-1.0"}
    values = {
        "sources": [source | ({"max_bytes": max_bytes} if max_bytes else {})],
        "validation_fraction": 0.3,
        **changes,
    }
    data = DataConfig.model_validate(values)
    return data, data.sources[0]


def run(data: DataConfig, source: AnySource, output: Path) -> dict[str, Any]:
    return shard_data.run(data, source, output, report=lambda line: None)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    folder = tmp_path / "corpus"
    folder.mkdir()
    generator = random.Random(0)
    for number in range(40):
        words = [f"w{generator.randrange(3_000)}" for _ in range(60)]
        (folder / f"{number:02d}.txt").write_text(" ".join(words) + "\n")
    return folder


def test_every_document_is_accounted_for(corpus: Path, tmp_path: Path) -> None:
    (corpus / "latin.txt").write_bytes(b"caf\xe9 " * 50)
    (corpus / "image.txt").write_bytes(bytes(range(256)) * 2)
    (corpus / "nul.txt").write_bytes(b"some text \0 " * 20)
    (corpus / "empty.txt").write_bytes(b"")
    (corpus / "short.txt").write_bytes(b"too short")
    (corpus / "long.txt").write_bytes(b"word " * 1_000)
    copy = (corpus / "00.txt").read_text()
    (corpus / "copy.txt").write_text(copy.upper())
    (corpus / "near.txt").write_text(copy + "w1 w2\n")
    data, source = config(f"{corpus}/*.txt", max_document_bytes=3_000)
    lines: list[str] = []
    result = shard_data.run(data, source, tmp_path / "out", lines.append)
    assert result["skipped"] == {
        "binary": 1,
        "empty": 1,
        "exact_duplicate": 1,
        "near_duplicate": 1,
        "not_utf8": 2,
        "too_long": 1,
        "too_short": 1,
    }
    assert result["read"]["documents"] == 48
    assert result["read"]["bytes"] == sum(path.stat().st_size for path in corpus.iterdir())
    assert result["kept"]["documents"] == 40
    for split, counted in result["splits"].items():
        texts = list(read_texts(tmp_path / "out", split))
        assert counted == {"documents": len(texts), "bytes": sum(len(text.encode()) for text in texts)}
        assert texts
    assert sum(counted["documents"] for counted in result["splits"].values()) == 40
    assert json.loads((tmp_path / "out" / "report.json").read_text()) == result
    assert "kept 40" in lines[-1] and "2 not_utf8" in lines[-1]


def test_two_runs_are_byte_identical(corpus: Path, tmp_path: Path) -> None:
    data, source = config(f"{corpus}/*.txt", shard_bytes=5_000)
    outputs = [tmp_path / "one", tmp_path / "two"]
    for output in outputs:
        run(data, source, output)
    one, two = ({path.name: path.read_bytes() for path in output.iterdir()} for output in outputs)
    assert one == two and len(one) > 3
    assert shard_data.manifest(source) == shard_data.manifest(source)


def test_a_second_run_into_the_same_folder_leaves_no_stale_shard(corpus: Path, tmp_path: Path) -> None:
    run(*config(f"{corpus}/*.txt", shard_bytes=2_000), tmp_path / "out")
    data, source = config(f"{corpus}/*.txt")
    run(data, source, tmp_path / "out")
    assert len(list((tmp_path / "out").glob("*.parquet"))) == 2


def test_adding_documents_moves_none_across_the_split(corpus: Path, tmp_path: Path) -> None:
    data, source = config(f"{corpus}/*.txt")
    run(data, source, tmp_path / "before")
    for number in range(30):
        (corpus / f"new{number}.txt").write_text(" ".join(f"n{number}x{word}" for word in range(50)))
    run(data, source, tmp_path / "after")
    for split in ("train", "validation"):
        before, after = ({d.origin for d in read_documents(tmp_path / name, split)} for name in ("before", "after"))
        assert before < after


def test_max_bytes_stops_after_a_sample_of_the_whole(corpus: Path, tmp_path: Path) -> None:
    data, source = config(f"{corpus}/*.txt", max_bytes=3_000)
    result = run(data, source, tmp_path / "out")
    assert 3_000 <= result["kept"]["bytes"] < 3_400
    origins = [d.origin for split in ("train", "validation") for d in read_documents(tmp_path / "out", split)]
    assert max(origins) > "20.txt" > min(origins)


def test_the_manifest_names_bytes_and_no_path_of_this_machine(corpus: Path) -> None:
    _, source = config(f"{corpus}/*.txt")
    before = shard_data.manifest(source)
    assert str(corpus).encode() not in before
    listed = json.loads(before)
    assert [entry["origin"] for entry in listed["files"]] == sorted(path.name for path in corpus.iterdir())
    (corpus / "00.txt").write_text("changed")
    assert shard_data.manifest(source) != before


def test_the_manifest_of_the_python_kinds_names_the_interpreter() -> None:
    import platform

    for kind in ("python_docs", "python_stdlib"):
        data = DataConfig.model_validate({"sources": [{"name": "p", "kind": kind}]})
        listed = json.loads(shard_data.manifest(data.sources[0]))
        assert listed["python"] == platform.python_version() and listed["licence"] == "PSF-2.0"
        assert len(listed["files"]) > 300


def test_the_manifest_of_a_hub_data_set_is_its_pinned_revision() -> None:
    hub = {
        "name": "w",
        "register_as": "text",
        "kind": "hub",
        "dataset": "a/b",
        "revision": "f" * 40,
        "licence": "ODC-BY",
    }
    data = DataConfig.model_validate({"sources": [hub]})
    assert json.loads(shard_data.manifest(data.sources[0])) == {
        "kind": "hub",
        "dataset": "a/b",
        "revision": "f" * 40,
        "subset": None,
        "split": "train",
        "data_files": [],
        "licence": "ODC-BY",
    }


def test_a_source_with_nothing_usable_and_a_one_sided_split_are_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"\0" * 100)
    with pytest.raises(SourceError, match=r"'mine' is empty: nothing passed the filter .*1 binary"):
        run(*config(f"{tmp_path}/*.txt"), tmp_path / "out")
    (tmp_path / "a.txt").write_text("one good document alone " * 10)
    with pytest.raises(SourceError, match=r"none of its 1 documents falls into (train|validation); add documents"):
        run(*config(f"{tmp_path}/*.txt"), tmp_path / "out")


def test_the_interpreter_is_sharded_without_any_other_input(tmp_path: Path) -> None:
    data = DataConfig.model_validate({"sources": [{"name": "std", "kind": "python_stdlib", "max_bytes": 400_000}]})
    result = run(data, data.sources[0], tmp_path / "out")
    assert 400_000 <= result["kept"]["bytes"] < 900_000 and result["register"] == "code"
    kept = [d for split in ("train", "validation") for d in read_documents(tmp_path / "out", split)]
    assert all(document.licence == "PSF-2.0" and document.origin.endswith(".py") for document in kept)
    for document in kept:
        compile(document.text, document.origin, "exec", dont_inherit=True)
