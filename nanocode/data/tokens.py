"""Tokenised documents on disk: what the packer plans over and the loader reads at random.

Format 1. A folder holds, for each shard ``SPLIT-NNNNN``, arrays in NumPy's ``.npy`` format, little-endian:

    train-00000.ids.npy     (tokens,) uint16 for vocabularies of at most 65,536 entries, else uint32
    train-00000.starts.npy  (documents + 1,) int64: document d is ids[starts[d] : starts[d + 1]], <|bos|> included
    train-00000.mask.npy    (tokens,) uint8: 1 where the model is trained to produce the token; absent for plain text
    tokens.json             {"format": 1, "vocab_size": ..., "masked": ..., "shards": {NAME: {"documents", "tokens"}}}

``tokens.json`` is written last. The same documents give the same bytes, and none of it is ever whole in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nanocode.data.arrays import ArrayFileError, GrowingArray, map_array, read_index, write_index

FORMAT = 1
INDEX = "tokens.json"
STARTS_DTYPE, MASK_DTYPE = np.dtype("<i8"), np.dtype("u1")
_CHECKED_AT_ONCE = 1 << 20  # documents


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type of the format that holds every id."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True)
class TokenShard:
    """One shard: memory maps, or arrays of the same shapes."""

    name: str
    ids: np.ndarray  # (tokens,) uint16 or uint32
    starts: np.ndarray  # (documents + 1,) int64
    mask: np.ndarray | None = None  # (tokens,) uint8

    @property
    def documents(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(documents,) int64, a fresh array: eight bytes a document."""
        return np.diff(self.starts)

    def document(self, index: int) -> np.ndarray:
        """(length,) int32, a fresh array."""
        return np.asarray(self.ids[self.starts[index] : self.starts[index + 1]], dtype=np.int32)


class TokenShardWriter:
    """Writes one shard, document by document; a context manager. `entry` is its line of the index."""

    def __init__(self, folder: Path, name: str, vocab_size: int, *, masked: bool = False) -> None:
        self.name, self._vocab_size = name, vocab_size
        self._ids = GrowingArray(folder / f"{name}.ids.npy", token_dtype(vocab_size))
        self._starts = GrowingArray(folder / f"{name}.starts.npy", STARTS_DTYPE)
        self._mask = GrowingArray(folder / f"{name}.mask.npy", MASK_DTYPE) if masked else None
        self._starts.append(np.zeros(1, STARTS_DTYPE))

    def __enter__(self) -> TokenShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for array in (self._ids, self._starts, self._mask):
            if array is not None:
                array.close()

    def write(self, ids: np.ndarray, lengths: np.ndarray, mask: np.ndarray | None = None) -> None:
        """Append documents that stand end to end in `ids`. Raises ArrayFileError for what the format cannot hold."""
        if int(lengths.sum()) != len(ids) or (mask is None) != (self._mask is None):
            raise ArrayFileError(f"{self.name}: lengths of {int(lengths.sum())} and a mask must fit {len(ids)} tokens")
        if mask is not None and len(mask) != len(ids):
            raise ArrayFileError(f"{self.name}: {len(ids)} ids and {len(mask)} mask values")
        if len(lengths) and int(lengths.min()) < 1:
            raise ArrayFileError(f"{self.name}: an empty document cannot be stored: each must open with <|bos|>")
        if len(ids) and (int(ids.max()) >= self._vocab_size or int(ids.min()) < 0):
            raise ArrayFileError(f"{self.name}: ids {ids.min()} to {ids.max()} in a vocabulary of {self._vocab_size}")
        self._starts.append(self._ids.length + np.cumsum(lengths, dtype=STARTS_DTYPE))
        self._ids.append(ids)
        if self._mask is not None and mask is not None:
            self._mask.append(mask)

    @property
    def entry(self) -> dict[str, int]:
        return {"documents": self._starts.length - 1, "tokens": self._ids.length}


def complete_tokens(
    folder: Path, vocab_size: int, shards: Mapping[str, Mapping[str, int]], *, masked: bool = False
) -> None:
    """Write the index over shards that are all there, by name."""
    index = {"format": FORMAT, "vocab_size": vocab_size, "masked": masked, "shards": shards}
    write_index(folder / INDEX, index)


def open_tokens(folder: Path, split: str) -> Sequence[TokenShard]:
    """The shards of a split in order, memory-mapped.

    Raises ArrayFileError when the folder is not whole, was altered, or has no shard of that split.
    """
    index = read_index(folder / INDEX, FORMAT, {"vocab_size": int, "masked": bool, "shards": dict})
    names = sorted(name for name in index["shards"] if name.startswith(f"{split}-"))
    if not names:
        raise ArrayFileError(f"{folder} holds no {split} documents (shards: {', '.join(index['shards']) or 'none'})")
    return [_open_shard(folder, name, index) for name in names]


def _open_shard(folder: Path, name: str, index: Mapping[str, Any]) -> TokenShard:
    entry = index["shards"][name]
    try:
        documents, tokens = int(entry["documents"]), int(entry["tokens"])
    except (KeyError, TypeError, ValueError):
        raise ArrayFileError(f"{folder / INDEX}: the entry of {name} is damaged; make it again") from None
    ids = map_array(folder / f"{name}.ids.npy", token_dtype(index["vocab_size"]), tokens)
    starts = map_array(folder / f"{name}.starts.npy", STARTS_DTYPE, documents + 1)
    mask = map_array(folder / f"{name}.mask.npy", MASK_DTYPE, tokens) if index["masked"] else None
    if not _partitions(starts, tokens):
        raise ArrayFileError(f"{folder / name}.starts.npy does not divide {tokens} tokens; make it again")
    return TokenShard(name, ids, starts, mask)


def _partitions(starts: np.ndarray, tokens: int) -> bool:
    """Whether the starts begin at 0, rise with every document and end at the last token."""
    if starts[0] != 0 or starts[-1] != tokens:
        return False
    pieces = (starts[first : first + _CHECKED_AT_ONCE + 1] for first in range(0, len(starts), _CHECKED_AT_ONCE))
    return all(bool((piece[1:] > piece[:-1]).all()) for piece in pieces)
