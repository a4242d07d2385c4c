"""Token shards: what is written is read back, the same documents give the same bytes, and damage is named."""

from __future__ import annotations

import json
import tempfile
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.arrays import ArrayFileError
from nanocode.data.tokens import TokenShard, TokenShardWriter, complete_tokens, open_tokens, token_dtype

VOCAB = 300

documents_of_ids = st.lists(st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=30), max_size=20)
NAME = "train-00000"


def write(folder: Path, documents: list[list[int]], vocab: int = VOCAB, masks: list[list[int]] | None = None) -> Path:
    with TokenShardWriter(folder, NAME, vocab, masked=masks is not None) as writer:
        for index, ids in enumerate(documents):
            mask = None if masks is None else np.array(masks[index])
            writer.write(np.array(ids), np.array([len(ids)]), mask)
    complete_tokens(folder, vocab, {NAME: writer.entry}, masked=masks is not None)
    return folder


def opened(folder: Path) -> TokenShard:
    (shard,) = open_tokens(folder, "train")
    return shard


@given(documents_of_ids, st.sampled_from([VOCAB, 1 << 16, (1 << 16) + 1]), st.booleans())
def test_documents_come_back(documents: list[list[int]], vocab: int, masked: bool) -> None:
    masks = [[token % 2 for token in ids] for ids in documents] if masked else None
    with tempfile.TemporaryDirectory() as name:
        shard = opened(write(Path(name), documents, vocab, masks))
        assert [shard.document(index).tolist() for index in range(shard.documents)] == documents
        assert shard.lengths.tolist() == [len(ids) for ids in documents]
        assert shard.ids.dtype == (np.uint32 if vocab > 1 << 16 else np.uint16)
        assert isinstance(shard.ids, np.memmap) and not shard.ids.flags.writeable
        assert (shard.mask is None) == (masks is None)
        if shard.mask is not None and masks is not None:
            assert shard.mask.tolist() == list(chain(*masks))


@given(documents_of_ids, st.integers(1, 7))
def test_the_bytes_do_not_depend_on_how_the_documents_arrived(documents: list[list[int]], at_once: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        one, other = Path(name, "one"), Path(name, "other")
        one.mkdir()
        other.mkdir()
        write(one, documents)
        with TokenShardWriter(other, NAME, VOCAB) as writer:
            for first in range(0, len(documents), at_once):
                some = documents[first : first + at_once]
                writer.write(np.array([*chain(*some)], dtype=np.int32), np.array([len(ids) for ids in some]))
        complete_tokens(other, VOCAB, {NAME: writer.entry})
        assert {path.name: path.read_bytes() for path in one.iterdir()} == {
            path.name: path.read_bytes() for path in other.iterdir()
        }


def test_the_format_is_little_endian_npy_that_numpy_reads_alone(tmp_path: Path) -> None:
    write(tmp_path, [[1, 2, 258], [7]])
    assert (tmp_path / f"{NAME}.ids.npy").read_bytes()[-8:] == bytes([1, 0, 2, 0, 2, 1, 7, 0])
    assert np.load(tmp_path / f"{NAME}.starts.npy").tolist() == [0, 3, 4]
    assert np.load(tmp_path / f"{NAME}.ids.npy", mmap_mode="r").tolist() == [1, 2, 258, 7]
    assert token_dtype(1 << 16).str == "<u2" and token_dtype((1 << 16) + 1).str == "<u4"


@given(st.data())
def test_a_cut_or_overgrown_file_is_named(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), [[1, 2, 3], [4, 5], [6]], masks=[[0, 1, 1], [0, 1], [0]])
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        whole = path.read_bytes()
        path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 2))])
        with pytest.raises(ArrayFileError, match=path.name.replace(".", r"\.")):
            open_tokens(folder, "train")


@given(st.data())
def test_altered_bytes_are_refused_or_change_no_document_boundary(data: st.DataObject) -> None:
    documents = [[1, 2, 3], [4, 5], [6]]
    with tempfile.TemporaryDirectory() as name:
        folder = write(Path(name), documents)
        path = data.draw(st.sampled_from(sorted(folder.iterdir())))
        damaged = bytearray(path.read_bytes())
        damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(damaged)
        try:
            shards = open_tokens(folder, "train")
        except ArrayFileError as error:
            assert "\n" not in str(error)
        else:  # the bytes of ids are guarded by the hash of their blob, not here
            assert [len(shard.ids) for shard in shards] == [6]
            assert shards[0].starts[0] == 0 and shards[0].starts[-1] == 6 and (shards[0].lengths > 0).all()


def test_a_folder_that_was_never_completed_is_refused(tmp_path: Path) -> None:
    with TokenShardWriter(tmp_path, NAME, VOCAB) as writer:
        writer.write(np.array([1]), np.array([1]))
    with pytest.raises(ArrayFileError, match="never completed"):
        open_tokens(tmp_path, "train")


def test_another_format_and_a_split_without_documents_are_refused(tmp_path: Path) -> None:
    write(tmp_path, [[1]])
    with pytest.raises(ArrayFileError, match="no validation documents"):
        open_tokens(tmp_path, "validation")
    index = json.loads((tmp_path / "tokens.json").read_text())
    (tmp_path / "tokens.json").write_text(json.dumps(index | {"format": 9}))
    with pytest.raises(ArrayFileError, match="format 9, this version reads format 1"):
        open_tokens(tmp_path, "train")


@pytest.mark.parametrize(
    ("ids", "lengths", "said"),
    [
        ([1, 2], [1], "must fit 2 tokens"),
        ([1], [1, 0], "an empty document"),
        ([VOCAB], [1], "in a vocabulary of 300"),
        ([-1], [1], "in a vocabulary of 300"),
    ],
)
def test_what_the_format_cannot_hold_is_refused(tmp_path: Path, ids: list[int], lengths: list[int], said: str) -> None:
    with TokenShardWriter(tmp_path, NAME, VOCAB) as writer, pytest.raises(ArrayFileError, match=said):
        writer.write(np.array(ids), np.array(lengths))
