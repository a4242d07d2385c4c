"""From token sequences to rows of one length: BOS-aligned best fit, as nanochat packs.

Text: rows are full and every row opens with a document. The price is cropping: when nothing fits what is left of a row,
the shortest document in the buffer is cut to fill it. nanochat drops the rest of that document, which costs little when
documents are shorter than a row and nearly everything when they are much longer; `keep_rest` puts the rest back as a
document of its own (behind a BOS), so that a small corpus of long files is used whole.

Conversations: never cut, a row is filled with padding instead. One that is longer than a row is left out and reported:
kept in the buffer, such conversations would clog it until rows held nothing but padding (karpathy/nanochat#590).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Generic, TypeVar

import numpy as np

from nanocode.conversation import Rendered

PAD_SEGMENT = -1

Item = TypeVar("Item")


@dataclass(frozen=True)
class Row:
    """One full row of text, and what was lost or added since the row before it."""

    ids: np.ndarray  # (row_tokens,) int32
    segments: np.ndarray  # (row_tokens,) int32: 0, 1, 2... by document within the row
    read_tokens: int
    cropped_tokens: int
    added_bos: int


@dataclass(frozen=True)
class PackedDocuments:
    """All rows of a corpus. ``ids.size + cropped_tokens + tail_tokens == read_tokens + added_bos``."""

    ids: np.ndarray  # (N, row_tokens) int32
    segments: np.ndarray  # (N, row_tokens) int32
    read_tokens: int
    cropped_tokens: int
    added_bos: int

    @property
    def tail_tokens(self) -> int:
        """Tokens at the end of the corpus that no longer filled a row."""
        return self.read_tokens + self.added_bos - self.cropped_tokens - self.ids.size

    @property
    def cropped_share(self) -> float:
        """Share of the tokens read that cropping dropped."""
        return self.cropped_tokens / self.read_tokens if self.read_tokens else 0.0


@dataclass(frozen=True)
class PackedConversations:
    """Rows of whole conversations; padding has mask 0 and segment -1."""

    ids: np.ndarray  # (N, row_tokens) int32
    mask: np.ndarray  # (N, row_tokens) int8: 1 where the model is trained to produce the token
    segments: np.ndarray  # (N, row_tokens) int32: 0, 1, 2... by conversation within the row
    dropped: list[int]  # indices of the conversations that are longer than a row


def pack_documents(
    documents: Iterable[Sequence[int]], row_tokens: int, *, buffer_documents: int = 1_000, keep_rest: bool = False
) -> PackedDocuments:
    """Pack a whole corpus into arrays; see `packed_rows` for the rule, and for corpora that do not fit in memory."""
    counting = _Counting(documents)
    rows = list(packed_rows(counting, row_tokens, buffer_documents=buffer_documents, keep_rest=keep_rest))
    empty = np.empty((0, row_tokens), dtype=np.int32)
    return PackedDocuments(
        ids=np.stack([row.ids for row in rows]) if rows else empty,
        segments=np.stack([row.segments for row in rows]) if rows else empty,
        read_tokens=counting.tokens,
        cropped_tokens=sum(row.cropped_tokens for row in rows),
        added_bos=sum(row.added_bos for row in rows),
    )


def packed_rows(
    documents: Iterable[Sequence[int]],
    row_tokens: int,
    *,
    buffer_documents: int = 1_000,
    refill_documents: int = 128,
    keep_rest: bool = False,
) -> Iterator[Row]:
    """Full rows of exactly `row_tokens` ids (context + 1), as a stream.

    Each document opens with BOS. Repeatedly the largest buffered document that fits is taken (the first to arrive among
    equals); when none fits, the shortest is cropped to fill the row, and its rest dropped or, with `keep_rest`,
    returned to the buffer behind a BOS. The buffer is refilled `refill_documents` at a time to at least
    `buffer_documents`. What remains at the end and does not fill a row is not yielded. Raises ValueError on an empty
    document or a row of fewer than two tokens.
    """
    if row_tokens < 2:
        raise ValueError(f"a row needs at least two tokens (one input, one target), got {row_tokens}")
    source = iter(documents)
    buffer: _LengthBuffer[np.ndarray] = _LengthBuffer()
    while True:
        ids = np.empty(row_tokens, dtype=np.int32)
        segments = np.empty(row_tokens, dtype=np.int32)
        position = segment = read = cropped = added = 0
        while position < row_tokens:
            read += _refill(buffer, source, buffer_documents, refill_documents)
            if not buffer:
                return
            space = row_tokens - position
            document = buffer.pop_largest(space)
            if document is None:
                document, rest = _crop(buffer.pop_shortest(), space)
                if keep_rest:
                    buffer.add(len(rest), rest)
                    added += 1
                else:
                    cropped += len(rest) - 1
            ids[position : position + len(document)] = document
            segments[position : position + len(document)] = segment
            position += len(document)
            segment += 1
        yield Row(ids, segments, read, cropped, added)


def pack_conversations(
    rendered: Sequence[Rendered], row_tokens: int, pad: int, *, buffer_conversations: int = 1_000
) -> PackedConversations:
    """Best fit of whole conversations into rows of `row_tokens`, the remainder of each row filled with `pad`.

    Raises ValueError when a conversation is empty or its mask has another length than its ids.
    """
    dropped = [index for index, item in enumerate(rendered) if len(item.ids) > row_tokens]
    fitting = iter(
        [_conversation_arrays(index, item) for index, item in enumerate(rendered) if len(item.ids) <= row_tokens]
    )
    buffer: _LengthBuffer[tuple[np.ndarray, np.ndarray]] = _LengthBuffer()
    rows = []
    while True:
        for ids_and_mask in islice(fitting, max(0, buffer_conversations - len(buffer))):
            buffer.add(len(ids_and_mask[0]), ids_and_mask)
        if not buffer:
            break
        members = []
        space = row_tokens
        while space and (member := buffer.pop_largest(space)) is not None:
            members.append(member)
            space -= len(member[0])
        rows.append(_padded_row(members, row_tokens, pad))
    ids, mask, segments = (np.stack(column) for column in zip(*rows, strict=True)) if rows else _no_rows(row_tokens)
    return PackedConversations(ids, mask, segments, dropped)


@dataclass
class _LengthBuffer(Generic[Item]):
    """Items sorted by (length, arrival): the two questions that packing asks are bisections."""

    _lengths: list[int] = field(default_factory=list)
    _items: list[Item] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._items)

    def add(self, length: int, item: Item) -> None:
        at = bisect_right(self._lengths, length)
        self._lengths.insert(at, length)
        self._items.insert(at, item)

    def pop_largest(self, space: int) -> Item | None:
        """Remove the largest item of at most `space`, the first to arrive among equals; None when none fits."""
        after = bisect_right(self._lengths, space)
        if after == 0:
            return None
        return self._pop(bisect_left(self._lengths, self._lengths[after - 1]))

    def pop_shortest(self) -> Item:
        return self._pop(0)

    def _pop(self, at: int) -> Item:
        del self._lengths[at]
        return self._items.pop(at)


class _Counting:
    """Passes documents on and counts their tokens, those that never reach a row included."""

    def __init__(self, documents: Iterable[Sequence[int]]) -> None:
        self._documents = documents
        self.tokens = 0

    def __iter__(self) -> Iterator[Sequence[int]]:
        for document in self._documents:
            self.tokens += len(document)
            yield document


def _refill(buffer: _LengthBuffer[np.ndarray], source: Iterator[Sequence[int]], least: int, batch: int) -> int:
    """Top the buffer up to `least` documents or the end of the source; the tokens that came in."""
    read = 0
    while len(buffer) < least:
        documents = [np.asarray(document, dtype=np.int32) for document in islice(source, batch)]
        if not documents:
            break
        for document in documents:
            if len(document) == 0:
                raise ValueError("an empty document cannot be packed: each must open with <|bos|>")
            buffer.add(len(document), document)
            read += len(document)
    return read


def _crop(document: np.ndarray, space: int) -> tuple[np.ndarray, np.ndarray]:
    """The first `space` tokens, and the rest behind the document's own BOS."""
    return document[:space], np.concatenate([document[:1], document[space:]])


def _conversation_arrays(index: int, item: Rendered) -> tuple[np.ndarray, np.ndarray]:
    if not item.ids or len(item.ids) != len(item.mask):
        raise ValueError(f"conversation {index} has {len(item.ids)} ids and {len(item.mask)} mask values")
    return np.asarray(item.ids, dtype=np.int32), np.asarray(item.mask, dtype=np.int8)


def _padded_row(
    members: list[tuple[np.ndarray, np.ndarray]], row_tokens: int, pad: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    ids = np.full(row_tokens, pad, dtype=np.int32)
    mask = np.zeros(row_tokens, dtype=np.int8)
    segments = np.full(row_tokens, PAD_SEGMENT, dtype=np.int32)
    position = 0
    for segment, (member_ids, member_mask) in enumerate(members):
        here = slice(position, position + len(member_ids))
        ids[here], mask[here], segments[here] = member_ids, member_mask, segment
        position = here.stop
    return ids, mask, segments


def _no_rows(row_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    shape = (0, row_tokens)
    return np.empty(shape, np.int32), np.empty(shape, np.int8), np.empty(shape, np.int32)
