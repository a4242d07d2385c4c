"""Shards on disk and the split."""

from __future__ import annotations

import copy
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.documents import Document
from nanocode.data.shards import SPLITS, ShardError, ShardWriter, read_documents, read_texts, shard_paths, split_of


def documents(count: int) -> list[Document]:
    return [Document(f"text {n} " + "é" * (n % 50), f"o/{n}", "MIT", f"g/{n // 2}") for n in range(count)]


def write(folder: Path, items: list[Document], shard_bytes: int = 10**9) -> Path:
    folder.mkdir()
    with ShardWriter(folder, shard_bytes) as writer:
        for item in items:
            writer.write(item, "mine", "train")
    return folder


def test_documents_come_back_as_they_went_in(tmp_path: Path) -> None:
    items = documents(2_500)
    folder = write(tmp_path / "out", items)
    back = list(read_documents(folder, "train"))
    assert [(d.text, d.origin, d.licence, d.group) for d in back] == [
        (d.text, d.origin, d.licence, d.group) for d in items
    ]
    assert {document.source for document in back} == {"mine"}
    assert list(read_texts(folder, "train")) == [item.text for item in items]
    hashes = pq.read_table(folder / "train-00000.parquet").column("sha256").to_pylist()
    assert hashes == [item.sha256 for item in items]


def test_shards_close_at_their_size_and_keep_the_order(tmp_path: Path) -> None:
    items = documents(300)
    folder = write(tmp_path / "out", items, shard_bytes=2_000)
    paths = shard_paths(folder, "train")
    assert [path.name for path in paths] == [f"train-{index:05d}.parquet" for index in range(len(paths))]
    sizes = [sum(len(text.encode()) for text in pq.read_table(path).column("text").to_pylist()) for path in paths]
    assert all(2_000 <= size < 2_000 + 120 for size in sizes[:-1]) and len(sizes) > 5
    assert list(read_texts(folder, "train")) == [item.text for item in items]


def test_equal_documents_give_equal_bytes(tmp_path: Path) -> None:
    one, two = (write(tmp_path / name, documents(1_500), 30_000) for name in ("one", "two"))
    assert [path.read_bytes() for path in shard_paths(one, "train")] == [
        path.read_bytes() for path in shard_paths(two, "train")
    ]


def test_both_splits_close_together_and_a_writer_goes_on_from_there(tmp_path: Path) -> None:
    items = [(item, split_of(item.group, 0.3)) for item in documents(400)]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    closed = []
    with ShardWriter(whole, 3_000) as writer:
        for number, (item, split) in enumerate(items):
            if writer.write(item, "mine", split):
                closed.append((number + 1, copy.deepcopy(writer.counts)))
                texts = [text for name in SPLITS for text in read_texts(whole, name)]
                assert sorted(texts) == sorted(item.text for item, _ in items[: number + 1]), "all is in whole files"
    place, counts = closed[3]
    for path in whole.iterdir():
        split, number = path.stem.split("-")
        if int(number) < counts[split].shards:
            (parts / path.name).write_bytes(path.read_bytes())
    with ShardWriter(parts, 3_000, counts) as writer:
        for item, split in items[place:]:
            writer.write(item, "mine", split)
    assert {path.name: path.read_bytes() for path in parts.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    assert sum(count.documents for count in writer.counts.values()) == 400


def test_missing_and_damaged_shards_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"no validation shards in .*validation-00000\.parquet"):
        list(read_texts(tmp_path, "validation"))
    folder = write(tmp_path / "out", documents(10))
    path = folder / "train-00000.parquet"
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ShardError, match=r"train-00000\.parquet is not a readable shard"):
        list(read_texts(folder, "train"))


@given(st.text(max_size=30), st.floats(0.01, 0.3))
def test_a_larger_fraction_only_adds_to_validation(group: str, fraction: float) -> None:
    if split_of(group, fraction) == "validation":
        assert split_of(group, fraction * 1.5) == "validation"


def test_the_split_takes_its_fraction_and_never_moves() -> None:
    groups = [f"package/module_{number}.py" for number in range(10_000)]
    held_out = [group for group in groups if split_of(group, 0.1) == "validation"]
    assert 900 < len(held_out) < 1_100
    assert held_out[:3] == ["package/module_8.py", "package/module_18.py", "package/module_25.py"], (
        "a changed hash would train on what released models hold out"
    )
