"""Training batches as a pure function of (seed, step): nothing to save, nothing to restore.

The mixture. Global row index g = step * batch_rows + position. A balanced binary tree of the sources decides whose turn
it is: at a node whose left side has share w, the left side owns round(n * w) of the first n rows, so index n goes left
exactly when that count steps up, and the count is also the index within that side. All in integers (weights are read as
exact decimals), so any index is found without walking there. In any prefix the share of a source is within one row of
its weight for up to three sources and within two for any number.

The order. Row j of a source is entry j mod N of a permutation of its N rows, seeded by (seed, source name, epoch j //
N): each row once an epoch, a new order every epoch, and no dependence on which other sources there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Protocol

import numpy as np

CACHED_PERMUTATIONS = 2  # per source: a batch may touch the end of one epoch and the beginning of the next


class RowSource(Protocol):
    """Rows of one source, all of `row_tokens`, in any order. `masked`: whether they say what is trained on."""

    @property
    def name(self) -> str: ...

    @property
    def weight(self) -> float: ...

    @property
    def row_tokens(self) -> int: ...

    @property
    def masked(self) -> bool: ...

    def __len__(self) -> int: ...

    def read(self, row: int, ids: np.ndarray, segments: np.ndarray, mask: np.ndarray | None) -> None:
        """Fill three arrays of `row_tokens` (int32, int32, int8) with one row."""


@dataclass(frozen=True)
class Batch:
    """Fresh arrays, the caller's to keep."""

    ids: np.ndarray  # (B, T+1) int32
    segments: np.ndarray  # (B, T+1) int32: 0, 1, 2... by document within the row, -1 for padding
    mask: np.ndarray | None  # (B, T+1) int8, None when the sources have none


@dataclass(frozen=True)
class Place:
    """Where a global row index points."""

    source: int
    epoch: int
    row: int


class TokenRows:
    """`batch(step)` for any step, in any order, on any machine. Raises ValueError when the sources do not fit
    together."""

    def __init__(self, sources: Sequence[RowSource], batch_rows: int, seed: int) -> None:
        if not sources:
            raise ValueError("no sources to draw rows from")
        if batch_rows < 1:
            raise ValueError(f"a batch needs at least one row, got {batch_rows}")
        if len({source.name for source in sources}) != len(sources):
            raise ValueError("two sources share a name")
        for source in sources:
            if len(source) == 0:
                raise ValueError(f"source {source.name!r} has no rows")
            if not source.weight > 0:
                raise ValueError(f"source {source.name!r}: the weight must be positive, got {source.weight}")
        if len({source.masked for source in sources}) > 1:
            raise ValueError("some sources have a mask and some have none")
        if len({source.row_tokens for source in sources}) > 1:
            widths = ", ".join(f"{source.name}: {source.row_tokens}" for source in sources)
            raise ValueError(f"rows of different length cannot share a batch ({widths})")
        self.sources = tuple(sources)
        self.batch_rows = batch_rows
        self._seed = seed
        self._mixture = mixture_tree([source.weight for source in sources])
        self._permutation = lru_cache(maxsize=CACHED_PERMUTATIONS * len(sources))(self._make_permutation)

    def batch(self, step: int, start: int = 0, stop: int | None = None) -> Batch:
        """Batch `step` (from 0), or its rows `start` to `stop` alone: what one host of several needs."""
        rows = range(step * self.batch_rows, (step + 1) * self.batch_rows)[start:stop]
        shape = (len(rows), self.sources[0].row_tokens)
        ids, segments = np.empty(shape, np.int32), np.empty(shape, np.int32)
        mask = np.empty(shape, np.int8) if self.sources[0].masked else None
        for position, index in enumerate(rows):
            place = self.place(index)
            own_mask = None if mask is None else mask[position]
            self.sources[place.source].read(place.row, ids[position], segments[position], own_mask)
        return Batch(ids, segments, mask)

    def place(self, index: int) -> Place:
        """The source and row at a global row index (from 0)."""
        if index < 0:
            raise ValueError(f"row indices start at 0, got {index}")
        source, local = locate(self._mixture, index)
        epoch, offset = divmod(local, len(self.sources[source]))
        return Place(source, epoch, int(self._permutation(source, epoch)[offset]))

    def epochs(self, steps: int) -> dict[str, float]:
        """How often `steps` batches go through each source, by name."""
        drawn = counts(self._mixture, steps * self.batch_rows)
        return {source.name: drawn[index] / len(source) for index, source in enumerate(self.sources)}

    def _make_permutation(self, source: int, epoch: int) -> np.ndarray:
        name = int.from_bytes(hashlib.sha256(self.sources[source].name.encode("utf-8")).digest()[:8], "big")
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([self._seed, name, epoch])))
        order = generator.permutation(len(self.sources[source]))
        return order.astype(np.uint32) if len(order) <= 1 << 32 else order  # what is cached: four bytes a row


@dataclass(frozen=True)
class Node:
    """An inner node of the mixture: `share` is the left side's part of what reaches the node."""

    share: Fraction
    left: Mixture
    right: Mixture


Mixture = Node | int  # a leaf is the index of a source


def mixture_tree(weights: Sequence[float]) -> Mixture:
    """A tree over the sources whose sides are as even as a greedy split makes them."""
    exact = [Fraction(str(weight)) for weight in weights]
    return _tree(sorted(range(len(exact)), key=lambda index: (-exact[index], index)), exact)


def _tree(members: list[int], weights: list[Fraction]) -> Mixture:
    """Split `members` (heaviest first) into two sides, each next one to the lighter side."""
    if len(members) == 1:
        return members[0]
    sides: tuple[list[int], list[int]] = ([], [])
    totals = [Fraction(0), Fraction(0)]
    for member in members:
        lighter = 0 if totals[0] <= totals[1] else 1
        sides[lighter].append(member)
        totals[lighter] += weights[member]
    return Node(totals[0] / sum(totals), _tree(sides[0], weights), _tree(sides[1], weights))


def locate(mixture: Mixture, index: int) -> tuple[int, int]:
    """The source whose turn global row `index` is, and how many rows it had before."""
    while isinstance(mixture, Node):
        before = _rounded(index, mixture.share)
        if _rounded(index + 1, mixture.share) > before:
            mixture, index = mixture.left, before
        else:
            mixture, index = mixture.right, index - before
    return mixture, index


def counts(mixture: Mixture, rows: int) -> dict[int, int]:
    """How many of the first `rows` global rows each source gives."""
    if not isinstance(mixture, Node):
        return {mixture: rows}
    left = _rounded(rows, mixture.share)
    return counts(mixture.left, left) | counts(mixture.right, rows - left)


def _rounded(rows: int, share: Fraction) -> int:
    """rows * share to the nearest integer, halves up, without floating point."""
    return (2 * rows * share.numerator + share.denominator) // (2 * share.denominator)
