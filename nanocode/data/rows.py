"""Rows of packed documents, put together from memory-mapped tokens when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanocode.data.packing import PackingPlan
from nanocode.data.tokens import TokenShard

PAD_SEGMENT = -1


class PackedRows:
    """The rows of one source, numbered through its shards: a `RowSource` of the loader.

    `pad` fills what the pieces of a row leave free; without it, rows must be full. Raises ValueError when there is no
    row, or the shards do not fit together.
    """

    def __init__(
        self,
        name: str,
        weight: float,
        shards: Sequence[TokenShard],
        plans: Sequence[PackingPlan],
        pad: int | None = None,
    ) -> None:
        self.name, self.weight = name, weight
        self._shards, self._plans, self._pad = list(shards), list(plans), pad
        self._ends = np.cumsum([len(plan) for plan in plans])
        if len(shards) != len(plans) or len(self) == 0:
            raise ValueError(f"source {name!r} has no rows: its text fills none; give it more text or a shorter row")
        if len({plan.row_tokens for plan in plans}) > 1 or len({shard.mask is None for shard in shards}) > 1:
            raise ValueError(f"source {name!r}: shards of different row length, or with and without a mask")
        self.row_tokens = plans[0].row_tokens
        self.masked = shards[0].mask is not None

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def read(self, row: int, ids: np.ndarray, segments: np.ndarray, mask: np.ndarray | None) -> None:
        """Fill three arrays of `row_tokens` (int32, int32, int8) with a row; segment -1 and mask 0 are padding."""
        part = int(np.searchsorted(self._ends, row, side="right"))
        shard, plan = self._shards[part], self._plans[part]
        local = row - (int(self._ends[part - 1]) if part else 0)
        position = 0
        first, last = plan.rows[local : local + 2]
        for segment, (document, start, stop) in enumerate(plan.pieces[first:last].tolist()):
            base, begin = int(shard.starts[document]), position
            if start > 0:  # a cut document goes on behind its own BOS
                ids[position] = shard.ids[base]
                position += 1
            end = position + stop - start
            ids[position:end] = shard.ids[base + start : base + stop]
            segments[begin:end] = segment
            if mask is not None and shard.mask is not None:
                mask[begin:position] = 0
                mask[position:end] = shard.mask[base + start : base + stop]
            position = end
        if position < self.row_tokens:
            self._fill(row, position, ids, segments, mask)

    def _fill(self, row: int, position: int, ids: np.ndarray, segments: np.ndarray, mask: np.ndarray | None) -> None:
        if self._pad is None:
            raise ValueError(f"source {self.name!r}: row {row} holds {position} of {self.row_tokens} tokens and no pad")
        ids[position:], segments[position:] = self._pad, PAD_SEGMENT
        if mask is not None:
            mask[position:] = 0
