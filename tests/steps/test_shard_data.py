"""The stage that shards a source, as a user meets it."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from artifacts.checkpoints import CheckpointStore
from artifacts.store import open_store
from nanocode.config import AnySource, DataConfig, FilterConfig
from nanocode.data import judge as judging
from nanocode.data.decontaminate import EvaluationItem, items_digest
from nanocode.data.documents import RawDocument, SourceError
from nanocode.data.shards import read_documents, read_texts
from nanocode.stopping import Interrupted
from steps import shard_data
from steps.shard_progress import Saving


def config(glob: str, max_bytes: int | None = None, **changes: Any) -> tuple[DataConfig, AnySource]:
    source = {"name": "mine", "kind": "files", "register_as": "text", "glob": glob, "licence": "CC0-1.0"}
    values = {
        "sources": [source | ({"max_bytes": max_bytes} if max_bytes else {})],
        "validation_fraction": 0.3,
        **changes,
    }
    data = DataConfig.model_validate(values)
    return data, data.sources[0]


def run(data: DataConfig, source: AnySource, output: Path, **changes: Any) -> dict[str, Any]:
    return shard_data.run(data, source, output, report=lambda line: None, **changes)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
    one, two = map(contents, outputs)
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


class Killed(Exception):
    """What ends an attempt in these tests, wherever it is."""


@pytest.fixture
def saving(tmp_path: Path) -> Saving:
    return Saving(CheckpointStore(open_store("file:store", tmp_path), "key"), every_seconds=0, clock=lambda: 0.0)


@pytest.mark.parametrize("kills", [(15,), (3, 17, 30), (33,), tuple(range(4, 60, 5))])
def test_a_killed_attempt_goes_on_and_ends_with_the_same_bytes(
    corpus: Path, tmp_path: Path, saving: Saving, monkeypatch: pytest.MonkeyPatch, kills: tuple[int, ...]
) -> None:
    for number in range(0, 40, 9):
        (corpus / f"copy-{number}.txt").write_text((corpus / f"{number:02d}.txt").read_text())
    data, source = config(f"{corpus}/*.txt", shard_bytes=1_500, max_bytes=12_000)
    run(data, source, tmp_path / "whole")
    judge = judging.judge
    seen: list[str] = []
    for attempt, kill in enumerate([*kills, None]):
        seen.clear()

        def deadly(raw: RawDocument, rules: Any, kill: int | None = kill) -> Any:
            seen.append(raw.origin)
            if kill is not None and len(seen) == kill:
                raise Killed
            return judge(raw, rules)

        monkeypatch.setattr(judging, "judge", deadly)
        output = tmp_path / f"attempt-{attempt}"
        try:
            run(data, source, output, saving=saving)
        except Killed:
            continue
        break
    assert contents(output) == contents(tmp_path / "whole")
    assert attempt > 0
    if kills[0] > 10:
        assert len(seen) < 45 - kills[0] + 10, "what was saved is not judged again"


def test_a_stage_that_is_asked_to_stop_saves_its_last_whole_shards(
    corpus: Path, tmp_path: Path, saving: Saving
) -> None:
    data, source = config(f"{corpus}/*.txt", shard_bytes=1_500)
    run(data, source, tmp_path / "whole")
    rarely = replace(saving, every_seconds=3_600)
    asked = iter([False] * 20 + [True])
    with pytest.raises(Interrupted, match="stopped in data source mine; run the same command"):
        run(data, source, tmp_path / "stopped", saving=rarely, stop_requested=lambda: next(asked))
    lines: list[str] = []
    shard_data.run(data, source, tmp_path / "resumed", lines.append, saving=rarely)
    assert re.match(r"mine: goes on after (1\d|20) documents that were done before", lines[0])
    assert contents(tmp_path / "resumed") == contents(tmp_path / "whole")


def test_any_number_of_workers_writes_the_same_bytes(corpus: Path, tmp_path: Path) -> None:
    for name, workers in (("one", 1), ("two", 2)):
        data, source = config(f"{corpus}/*.txt", shard_bytes=4_000, workers=workers, max_bytes=10_000)
        run(data, source, tmp_path / name)
        assert "workers" not in data.identity()
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_single_parquet_file_of_one_row_group_fills_both_splits(tmp_path: Path) -> None:
    texts = [f"document {number} " + "word " * 20 for number in range(50)]
    pq.write_table(pa.table({"text": texts}), tmp_path / "only.parquet")
    data, source = config(f"{tmp_path}/*.parquet", near_duplicate_threshold=1.0)
    result = run(data, source, tmp_path / "out")
    assert all(count["documents"] > 0 for count in result["splits"].values())
    assert sum(count["documents"] for count in result["splits"].values()) == 50


def test_a_table_without_rows_is_an_empty_source(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": pa.array([], pa.string())}), tmp_path / "x.parquet")
    (tmp_path / "x.jsonl").write_bytes(b"")
    for name in ("x.parquet", "x.jsonl"):
        with pytest.raises(SourceError, match=r"'mine' is empty: nothing passed the filter \(mine: read 0 documents"):
            run(*config(f"{tmp_path}/{name}"), tmp_path / "out")


def test_secrets_are_replaced_counted_or_cost_the_document_as_the_source_says(corpus: Path, tmp_path: Path) -> None:
    (corpus / "mail.txt").write_text("write to jane@mail.org or joe@mail.org about it " * 2)
    (corpus / "key.txt").write_text("aws " + "AKIA" + "QWERTYUIOPASDFGH is the key of a cloud account, keep it secret")
    data, source = config(f"{corpus}/*.txt")
    result = run(data, source, tmp_path / "redacted")
    assert result["filters"] == {
        "aws_key": {"documents": 1, "matches": 1},
        "email": {"documents": 1, "matches": 4},
    }
    text = "".join(read_texts(tmp_path / "redacted", "train")) + "".join(
        read_texts(tmp_path / "redacted", "validation")
    )
    assert "write to <EMAIL> or <EMAIL> about" in text and "aws <KEY> is" in text
    assert "mail.org" not in text and "QWERTY" not in text
    dropping = source.model_copy(update={"filters": FilterConfig(aws_key="drop", email="off")})
    result = run(data, dropping, tmp_path / "dropped")
    assert result["skipped"] == {"has_aws_key": 1} and list(result["filters"]) == ["aws_key"]


def test_a_planted_leak_is_dropped_and_every_item_reported(corpus: Path, tmp_path: Path) -> None:
    sets = tmp_path / "sets"
    sets.mkdir()
    items = [" ".join(f"q{item}w{number}" for number in range(40)) for item in range(3)] + ["too short"]
    (sets / "bench.jsonl").write_text("".join(json.dumps({"text": item}) + "\n" for item in items))
    (corpus / "leak.txt").write_text(f"before it {items[1].upper()} and after")
    (corpus / "quote.txt").write_text("a short quotation: " + " ".join(items[2].split()[5:20]) + " and more of it")
    pin = items_digest([EvaluationItem(f"bench/bench.jsonl#{number}", item) for number, item in enumerate(items)])
    decontamination = {"sets": [{"name": "bench", "glob": f"{sets}/*", "sha256": pin}]}
    for action, dropped in (("drop", 1), ("report", 0)):
        data, source = config(f"{corpus}/*.txt", decontamination=decontamination | {"action": action})
        result = run(data, source, tmp_path / action)
        assert result["decontamination"] == {
            "items": 3,
            "unchecked": 1,
            "touched": 2,
            "contaminated": 1,
            "dropped_documents": dropped,
        }
        details = json.loads((tmp_path / action / "decontamination.json").read_text())
        assert details["unchecked"] == ["bench/bench.jsonl#3"]
        assert {name: (item["coverage"], item["origin"]) for name, item in details["items"].items()} == {
            "bench/bench.jsonl#1": (1.0, "leak.txt"),
            "bench/bench.jsonl#2": (0.375, "quote.txt"),
        }
    with pytest.raises(SourceError, match=r"evaluation set 'bench' is not the pinned one"):
        (sets / "bench.jsonl").write_text('{"text": "other"}\n')
        run(data, source, tmp_path / "drop")


def test_a_file_that_changed_after_the_manifest_is_refused(corpus: Path, tmp_path: Path) -> None:
    data, source = config(f"{corpus}/*.txt")
    manifest = shard_data.manifest(source)
    before = run(data, source, tmp_path / "before", manifest=manifest)
    assert before == run(data, source, tmp_path / "again")
    (corpus / "07.txt").write_text("something else")
    with pytest.raises(SourceError, match=r"07\.txt has sha256 .* run again"):
        run(data, source, tmp_path / "after", manifest=manifest)
    assert not list(tmp_path.glob("reading-*")), "no copies are left behind"


def test_progress_says_how_much_of_what_is_wanted_is_there(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.txt").write_text(f"{number} " + "x" * 100_000)
    data, source = config(f"{tmp_path}/*.txt", max_bytes=3_000_000, near_duplicate_threshold=1.0)
    lines: list[str] = []
    shard_data.run(data, source, tmp_path / "out", lines.append)
    assert "kept 30 (3,0" in lines[-1]
