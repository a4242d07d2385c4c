"""Which pieces of which documents make up which row: BOS-aligned best fit, as nanochat packs, planned in integers.

A plan needs the documents' lengths alone. Text: rows are full and every row opens with a document. The price is
cropping: when nothing fits what is left of a row, the shortest document in the buffer is cut to fill it. nanochat drops
the rest of that document, which costs little when documents are shorter than a row and nearly everything when they are
much longer; `keep_rest` puts the rest back as a document of its own (behind a BOS), so that a small corpus of long
files is used whole.

Conversations: never cut, a row is filled with padding instead. One that is longer than a row is left out and reported:
kept in the buffer, such conversations would clog it until rows held nothing but padding (karpathy/nanochat#590).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import numpy as np

BUFFER_DOCUMENTS = 1_000
REFILL_DOCUMENTS = 128
_LISTED_AT_ONCE = 1 << 16  # lengths that stand as Python integers


class Piece(NamedTuple):
    """Tokens `start` to `stop` of a document. With `start` > 0 the document's first token (BOS) is put before them."""

    document: int
    start: int
    stop: int

    @property
    def tokens(self) -> int:
        return self.stop - self.start + (self.start > 0)


@dataclass(frozen=True)
class PackingPlan:
    """Row r consists of ``pieces[rows[r] : rows[r + 1]]``. Arrays, or memory maps of the same shapes."""

    row_tokens: int
    rows: np.ndarray  # (N + 1,) int64
    pieces: np.ndarray  # (P, 3) uint32: document, start, stop
    read_tokens: int
    cropped_tokens: int  # dropped from documents that reached a row
    added_bos: int  # put before the rests of documents that were cut

    def __len__(self) -> int:
        return len(self.rows) - 1

    @property
    def tail_tokens(self) -> int:
        """Tokens at the end of the corpus that no longer filled a row; counts for full rows alone."""
        return self.read_tokens + self.added_bos - self.cropped_tokens - len(self) * self.row_tokens

    @property
    def cropped_share(self) -> float:
        """Share of the tokens read that cropping dropped."""
        return self.cropped_tokens / self.read_tokens if self.read_tokens else 0.0


def plan_documents(
    lengths: np.ndarray,
    row_tokens: int,
    *,
    buffer_documents: int = BUFFER_DOCUMENTS,
    refill_documents: int = REFILL_DOCUMENTS,
    keep_rest: bool = False,
) -> PackingPlan:
    """Full rows of exactly `row_tokens` ids (context + 1) from documents of `lengths` tokens, BOS included.

    Repeatedly the largest buffered document that fits is taken (the first to arrive among equals); when none fits, the
    shortest is cropped to fill the row, and its rest dropped or, with `keep_rest`, returned to the buffer behind a BOS.
    The buffer is refilled `refill_documents` at a time to at least `buffer_documents`. What remains at the end and does
    not fill a row is left out. Raises ValueError on an empty document or a row of fewer than two tokens.
    """
    if row_tokens < 2:
        raise ValueError(f"a row needs at least two tokens (one input, one target), got {row_tokens}")
    source, buffer, rows = _whole(lengths), _LengthBuffer(), _Rows()
    cropped = added = 0
    while True:
        space, dropped, rests = row_tokens, 0, 0
        while space:
            _refill(buffer, source, buffer_documents, refill_documents)
            if not buffer:
                return rows.plan(row_tokens, int(lengths.sum()), cropped, added)
            piece = buffer.pop_largest(space)
            if piece is None:
                piece, rest = _crop(buffer.pop_shortest(), space)
                if keep_rest:
                    buffer.add(rest)
                    rests += 1
                else:
                    dropped += rest.stop - rest.start
            rows.add(piece)
            space -= piece.tokens
        rows.end()
        cropped, added = cropped + dropped, added + rests


def plan_conversations(
    lengths: np.ndarray, row_tokens: int, *, buffer_conversations: int = BUFFER_DOCUMENTS
) -> tuple[PackingPlan, np.ndarray]:
    """Best fit of whole conversations into rows of at most `row_tokens`; then the indices of those longer than a row.

    Raises ValueError when a conversation is empty.
    """
    fitting, buffer, rows = (piece for piece in _whole(lengths) if piece.tokens <= row_tokens), _LengthBuffer(), _Rows()
    while True:
        _refill(buffer, fitting, buffer_conversations, 1)
        if not buffer:
            break
        space = row_tokens
        while space and (piece := buffer.pop_largest(space)) is not None:
            rows.add(piece)
            space -= piece.tokens
        rows.end()
    too_long = np.flatnonzero(lengths > row_tokens)
    left_out = int(lengths[too_long].sum())
    return rows.plan(row_tokens, int(lengths.sum()) - left_out, 0, 0), too_long


@dataclass
class _LengthBuffer:
    """Pieces sorted by (length, arrival): the two questions that packing asks are bisections."""

    _lengths: list[int] = field(default_factory=list)
    _pieces: list[Piece] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, piece: Piece) -> None:
        length = piece.tokens
        at = bisect_right(self._lengths, length)
        self._lengths.insert(at, length)
        self._pieces.insert(at, piece)

    def pop_largest(self, space: int) -> Piece | None:
        """Remove the largest piece of at most `space`, the first to arrive among equals; None when none fits."""
        after = bisect_right(self._lengths, space)
        if after == 0:
            return None
        return self._pop(bisect_left(self._lengths, self._lengths[after - 1]))

    def pop_shortest(self) -> Piece:
        return self._pop(0)

    def _pop(self, at: int) -> Piece:
        del self._lengths[at]
        return self._pieces.pop(at)


class _Rows:
    """The pieces of finished rows and of the one in progress: four bytes a number."""

    def __init__(self) -> None:
        self._numbers, self._ends = array("I"), array("q", [0])

    def add(self, piece: Piece) -> None:
        self._numbers.extend(piece)

    def end(self) -> None:
        self._ends.append(len(self._numbers) // 3)

    def plan(self, row_tokens: int, read: int, cropped: int, added: int) -> PackingPlan:
        """The plan of the finished rows."""
        pieces = np.array(self._numbers, dtype=np.uint32).reshape(-1, 3)[: self._ends[-1]]
        return PackingPlan(row_tokens, np.array(self._ends, dtype=np.int64), pieces, read, cropped, added)


def _whole(lengths: np.ndarray) -> Iterator[Piece]:
    """Every document as a piece, in order."""
    for first in range(0, len(lengths), _LISTED_AT_ONCE):
        for document, length in enumerate(lengths[first : first + _LISTED_AT_ONCE].tolist(), first):
            if length < 1:
                raise ValueError("an empty document cannot be packed: each must open with <|bos|>")
            yield Piece(document, 0, length)


def _refill(buffer: _LengthBuffer, source: Iterator[Piece], least: int, batch: int) -> None:
    """Top the buffer up to `least` pieces, `batch` at a time, or to the end of the source."""
    while len(buffer) < least:
        arrived = list(islice(source, batch))
        if not arrived:
            return
        for piece in arrived:
            buffer.add(piece)


def _crop(piece: Piece, space: int) -> tuple[Piece, Piece]:
    """The first `space` tokens, and the rest, which opens with the document's BOS again."""
    cut = piece.start + space - (piece.start > 0)
    return Piece(piece.document, piece.start, cut), Piece(piece.document, cut, piece.stop)
