"""Rows from memory maps: the rows of the plain packer, token for token, whatever the files they lie in."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packing_reference import corpus, pack_documents

from nanocode.data.arrays import ArrayFileError
from nanocode.data.packing import plan_conversations, plan_documents
from nanocode.data.plans import complete_plans, open_plans, save_plan
from nanocode.data.rows import PAD_SEGMENT, PackedRows
from nanocode.data.tokens import TokenShard, TokenShardWriter, complete_tokens, open_tokens

VOCAB = 1_000_000  # the ids of `corpus` name document and position
PAD = 999


def store(folder: Path, shards: list[list[list[int]]]) -> list[TokenShard]:
    """Token shards on disk, opened."""
    entries = {}
    for number, documents in enumerate(shards):
        with TokenShardWriter(folder, f"train-{number:05d}", VOCAB) as writer:
            for ids in documents:
                writer.write(np.array(ids), np.array([len(ids)]))
        entries[writer.name] = writer.entry
    complete_tokens(folder, VOCAB, entries)
    return list(open_tokens(folder, "train"))


def plan(folder: Path, shards: list[TokenShard], row_tokens: int, keep_rest: bool = True) -> None:
    entries = {
        shard.name: save_plan(folder, shard, plan_documents(shard.lengths, row_tokens, keep_rest=keep_rest))
        for shard in shards
    }
    complete_plans(folder, row_tokens, {"keep_rest": keep_rest}, entries)


def read(rows: PackedRows, row: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """One row in arrays full of a value that no row holds."""
    ids, segments = np.full(rows.row_tokens, -7, np.int32), np.full(rows.row_tokens, -7, np.int32)
    mask = np.full(rows.row_tokens, 7, np.int8) if rows.masked else None
    rows.read(row, ids, segments, mask)
    return ids, segments, mask


@given(st.lists(st.lists(st.integers(1, 60), min_size=1, max_size=40), max_size=3), st.integers(2, 40), st.booleans())
def test_the_memory_mapped_rows_are_those_of_the_plain_packer(
    sizes: list[list[int]], row_tokens: int, keep_rest: bool
) -> None:
    shards = [corpus(own) for own in sizes]
    expected = [row for documents in shards for row in pack_documents(documents, row_tokens, keep_rest=keep_rest)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if not expected:
            return
        stored = store(folder, shards)
        plan(folder, stored, row_tokens, keep_rest)
        rows = PackedRows("docs", 1.0, stored, open_plans(folder, stored))
        assert len(rows) == len(expected)
        for index, row in enumerate(expected):
            ids, segments, mask = read(rows, index)
            assert ids.tolist() == row and mask is None
            assert segments.tolist() == (np.cumsum(ids == 0) - 1).tolist(), "a segment begins where a BOS stands"


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(2, 30))
def test_conversations_stand_whole_in_their_rows_and_the_rest_is_padding(sizes: list[int], row_tokens: int) -> None:
    documents = corpus(sizes)
    flat = np.concatenate(documents).astype(np.uint32)
    starts = np.cumsum([0, *sizes])
    shard = TokenShard("train-00000", flat, starts, (flat % 2).astype(np.uint8))
    packed, too_long = plan_conversations(shard.lengths, row_tokens)
    if len(packed) == 0:
        assert len(too_long) == len(sizes)
        return
    found = []
    rows = PackedRows("soul", 1.0, [shard], [packed], PAD)
    for index in range(len(rows)):
        ids, segments, mask = read(rows, index)
        assert mask is not None and segments[0] == 0, "no row is padding alone"
        assert (ids[segments == PAD_SEGMENT] == PAD).all() and (mask[segments == PAD_SEGMENT] == 0).all()
        for segment in range(segments.max() + 1):
            here = segments == segment
            found.append(ids[here].tolist())
            assert mask[here].tolist() == [token % 2 for token in found[-1]]
    assert sorted(found) == sorted(ids for ids in documents if len(ids) <= row_tokens)


def test_a_row_that_is_not_full_needs_a_pad() -> None:
    shard = TokenShard("train-00000", np.arange(3, dtype=np.uint16), np.array([0, 3]))
    packed, _ = plan_conversations(shard.lengths, 5)
    with pytest.raises(ValueError, match="holds 3 of 5 tokens and no pad"):
        read(PackedRows("docs", 1.0, [shard], [packed]), 0)


def test_text_that_fills_no_row_is_refused() -> None:
    shard = TokenShard("train-00000", np.arange(3, dtype=np.uint16), np.array([0, 3]))
    with pytest.raises(ValueError, match="'docs' has no rows"):
        PackedRows("docs", 1.0, [shard], [plan_documents(shard.lengths, 5)])
    with pytest.raises(ValueError, match="'none' has no rows"):
        PackedRows("none", 1.0, [], [])


def damage(folder: Path, name: str, at: int, value: int) -> None:
    array = np.load(folder / name, mmap_mode="r+")
    array[at] = value
    array.flush()


def test_a_plan_that_is_not_of_these_tokens_is_refused(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    one.mkdir()
    other.mkdir()
    shards = store(one, [corpus([30, 30])])
    plan(one, shards, 10)
    with pytest.raises(ArrayFileError, match=r"plans 2 documents of 60 tokens .* the tokens are 2 documents of 59"):
        open_plans(one, store(other, [corpus([30, 29])]))
    more = store(other, [corpus([30, 30]), corpus([30])])
    with pytest.raises(ArrayFileError, match="no whole entry for shard train-00001"):
        open_plans(one, more)


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("train-00000.pieces.npy", 0, 2),  # no such document
        ("train-00000.pieces.npy", 2, 31),  # beyond the end of its document
        ("train-00000.pieces.npy", 4, 60),  # begins after its end
        ("train-00000.pieces.npy", 2, 30),  # longer than a row
        ("train-00000.rows.npy", 1, 0),  # an empty row
        ("train-00000.rows.npy", 1, 10**9),  # beyond the last piece
        ("train-00000.rows.npy", 0, 1),  # a piece in no row
    ],
)
def test_an_altered_plan_is_refused(tmp_path: Path, name: str, at: int, value: int) -> None:
    shards = store(tmp_path, [corpus([30, 30])])
    plan(tmp_path, shards, 10)
    open_plans(tmp_path, shards)
    damage(tmp_path, name, at, value)
    with pytest.raises(ArrayFileError, match="is no plan of its tokens"):
        open_plans(tmp_path, shards)


@pytest.mark.parametrize("name", ["train-00000.rows.npy", "train-00000.pieces.npy", "plan.json"])
def test_a_cut_plan_is_named(tmp_path: Path, name: str) -> None:
    shards = store(tmp_path, [corpus([30, 30])])
    plan(tmp_path, shards, 10)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:-5])
    with pytest.raises(ArrayFileError, match=name.replace(".", r"\.")):
        open_plans(tmp_path, shards)


def test_the_plan_says_by_which_rule_it_was_made(tmp_path: Path) -> None:
    plan(tmp_path, store(tmp_path, [corpus([30, 30])]), 10)
    index = json.loads((tmp_path / "plan.json").read_text())
    assert (index["format"], index["row_tokens"], index["rule"]) == (1, 10, {"keep_rest": True})
