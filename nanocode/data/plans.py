"""Packing plans on disk: one for each token shard, computed once and read at random.

Format 1. A folder holds, for each shard of tokens, arrays in NumPy's ``.npy`` format, little-endian:

    train-00000.rows.npy    (rows + 1,) int64: row r consists of pieces[rows[r] : rows[r + 1]]
    train-00000.pieces.npy  (3 * pieces,) uint32: document, start, stop of each piece, tokens counted in its document
    plan.json               {"format": 1, "row_tokens": ..., "rule": {...}, "shards": {NAME: {"documents", "tokens",
                             "rows", "pieces", "cropped_tokens", "added_bos"}}}

``plan.json`` is written last. `nanocode.data.packing` says what a piece is; the same lengths give the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nanocode.data.arrays import ArrayFileError, GrowingArray, map_array, read_index, write_index
from nanocode.data.packing import PackingPlan
from nanocode.data.tokens import TokenShard

FORMAT = 1
INDEX = "plan.json"
ROWS_DTYPE, PIECES_DTYPE = np.dtype("<i8"), np.dtype("<u4")
_COUNTS = ("documents", "tokens", "rows", "pieces", "cropped_tokens", "added_bos")
_CHECKED_AT_ONCE = 1 << 20  # pieces


def save_plan(folder: Path, shard: TokenShard, plan: PackingPlan) -> dict[str, int]:
    """Write one shard's plan; returns its line of the index."""
    with GrowingArray(folder / f"{shard.name}.rows.npy", ROWS_DTYPE) as rows:
        rows.append(plan.rows)
    with GrowingArray(folder / f"{shard.name}.pieces.npy", PIECES_DTYPE) as pieces:
        pieces.append(plan.pieces.reshape(-1))
    counts = (shard.documents, len(shard.ids), len(plan), len(plan.pieces), plan.cropped_tokens, plan.added_bos)
    return dict(zip(_COUNTS, counts, strict=True))


def complete_plans(
    folder: Path, row_tokens: int, rule: Mapping[str, Any], shards: Mapping[str, Mapping[str, int]]
) -> None:
    """Write the index over plans that are all there, by shard."""
    write_index(folder / INDEX, {"format": FORMAT, "row_tokens": row_tokens, "rule": rule, "shards": shards})


def open_plans(folder: Path, shards: Sequence[TokenShard]) -> list[PackingPlan]:
    """The plan of each shard, memory-mapped.

    Raises ArrayFileError when the folder is not whole, was altered, or is the plan of other tokens.
    """
    index = read_index(folder / INDEX, FORMAT, {"row_tokens": int, "rule": dict, "shards": dict})
    return [_open_plan(folder, shard, index) for shard in shards]


def _open_plan(folder: Path, shard: TokenShard, index: Mapping[str, Any]) -> PackingPlan:
    try:
        counts = {name: int(index["shards"][shard.name][name]) for name in _COUNTS}
    except (KeyError, TypeError, ValueError):
        raise ArrayFileError(f"{folder / INDEX} has no whole entry for shard {shard.name}; plan it again") from None
    if (counts["documents"], counts["tokens"]) != (shard.documents, len(shard.ids)):
        raise ArrayFileError(
            f"{folder} plans {counts['documents']:,} documents of {counts['tokens']:,} tokens for {shard.name}, "
            f"the tokens are {shard.documents:,} documents of {len(shard.ids):,}; plan them again"
        )
    rows = map_array(folder / f"{shard.name}.rows.npy", ROWS_DTYPE, counts["rows"] + 1)
    flat = map_array(folder / f"{shard.name}.pieces.npy", PIECES_DTYPE, 3 * counts["pieces"])
    plan = PackingPlan(
        index["row_tokens"], rows, flat.reshape(-1, 3), counts["tokens"], counts["cropped_tokens"], counts["added_bos"]
    )
    if not _fits(plan, shard):
        raise ArrayFileError(f"{folder / shard.name}.pieces.npy is no plan of its tokens; plan them again")
    return plan


def _fits(plan: PackingPlan, shard: TokenShard) -> bool:
    """Whether the rows divide the pieces, every piece lies in its document, and no row is longer than a row."""
    if plan.rows[0] != 0 or plan.rows[-1] != len(plan.pieces) or (len(plan) == 0) != (len(plan.pieces) == 0):
        return False
    for first in range(0, len(plan), _CHECKED_AT_ONCE):
        ends = np.asarray(plan.rows[first : first + _CHECKED_AT_ONCE + 1])
        if not (np.diff(ends) > 0).all() or ends[-1] > len(plan.pieces):
            return False
        document, start, stop = plan.pieces[ends[0] : ends[-1]].astype(np.int64).T
        if document.max() >= shard.documents or (start > stop).any():
            return False
        if (stop > shard.starts[document + 1] - shard.starts[document]).any():
            return False
        tokens = stop - start + (start > 0)
        if np.add.reduceat(tokens, ends[:-1] - ends[0]).max() > plan.row_tokens:
            return False
    return True
