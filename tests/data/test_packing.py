"""Packing: properties on random corpora, and identity with a naive reading of nanochat's rule."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.conversation import Rendered
from nanocode.data.packing import PAD_SEGMENT, pack_conversations, pack_documents, packed_rows

BOS, PAD = 0, 999

lengths = st.lists(st.integers(1, 60), max_size=80)


def corpus(sizes: list[int]) -> list[list[int]]:
    """Documents whose tokens name document and position, so that each token can be traced."""
    return [[BOS, *(1_000 * (index + 1) + at for at in range(1, size))] for index, size in enumerate(sizes)]


def naive_rows(documents: list[list[int]], row_tokens: int, buffer_documents: int, refill: int) -> list[list[int]]:
    """The published rule by linear search, without any of the module's data structures."""
    waiting, buffer, rows = list(documents), [], []
    while True:
        row: list[int] = []
        while len(row) < row_tokens:
            while len(buffer) < buffer_documents and waiting:
                buffer, waiting = buffer + waiting[:refill], waiting[refill:]
            if not buffer:
                return rows
            space = row_tokens - len(row)
            fitting = [document for document in buffer if len(document) <= space]
            chosen = max(fitting, key=len) if fitting else min(buffer, key=len)
            buffer = [document for document in buffer if document is not chosen]
            row += chosen[:space]
        rows.append(row)


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.integers(1, 9))
def test_rows_equal_the_naive_rule(sizes: list[int], row_tokens: int, buffer_documents: int, refill: int) -> None:
    rows = packed_rows(corpus(sizes), row_tokens, buffer_documents=buffer_documents, refill_documents=refill)
    assert [row.ids.tolist() for row in rows] == naive_rows(corpus(sizes), row_tokens, buffer_documents, refill)


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.booleans())
def test_every_token_is_accounted_for(sizes: list[int], row_tokens: int, buffer: int, keep_rest: bool) -> None:
    packed = pack_documents(corpus(sizes), row_tokens, buffer_documents=buffer, keep_rest=keep_rest)
    assert packed.ids.shape == packed.segments.shape == (len(packed.ids), row_tokens)
    assert packed.ids.dtype == packed.segments.dtype == np.int32
    assert packed.read_tokens == sum(sizes)
    assert packed.cropped_tokens >= 0 and packed.tail_tokens >= 0
    body = packed.ids[packed.ids != BOS]
    assert len(set(body.tolist())) == body.size, "no token is trained on twice"
    if keep_rest:
        assert packed.cropped_tokens == 0
        missing = sum(sizes) - len(sizes) - body.size
        assert 0 <= missing <= packed.tail_tokens


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.booleans())
def test_every_row_and_every_segment_opens_with_bos(sizes: list[int], row_tokens: int, buffer: int, keep: bool) -> None:
    packed = pack_documents(corpus(sizes), row_tokens, buffer_documents=buffer, keep_rest=keep)
    assert (packed.ids[:, 0] == BOS).all() and (packed.segments[:, 0] == 0).all()
    steps = np.diff(packed.segments, axis=1)
    assert np.isin(steps, (0, 1)).all()
    assert ((steps == 1) == (packed.ids[:, 1:] == BOS)).all(), "a segment begins exactly where a BOS stands"


def test_documents_shorter_than_the_space_are_never_cropped_while_something_fits() -> None:
    packed = pack_documents(corpus([5, 4, 4, 3]), 8)
    assert packed.ids.tolist()[0] == [0, 1001, 1002, 1003, 1004, 0, 4001, 4002], "5 + 3, not 5 + a piece of 4"


def test_documents_much_longer_than_a_row_are_lost_unless_the_rest_is_kept() -> None:
    documents = corpus([900] * 20)
    assert pack_documents(documents, 100).cropped_share > 0.85
    kept = pack_documents(documents, 100, keep_rest=True)
    assert kept.cropped_share == 0 and kept.ids.size > sum(map(len, documents))


def test_no_documents_give_no_rows() -> None:
    assert pack_documents([], 9).ids.shape == (0, 9)


def test_an_empty_document_and_a_row_without_a_target_are_refused() -> None:
    with pytest.raises(ValueError, match="empty document"):
        pack_documents([[]], 8)
    with pytest.raises(ValueError, match="at least two tokens"):
        pack_documents([[0, 1]], 1)


def test_rows_are_fresh_arrays() -> None:
    first, second, *_ = packed_rows(corpus([30] * 10), 10)
    assert not np.shares_memory(first.ids, second.ids) and not np.shares_memory(first.segments, second.segments)


def test_two_million_tokens_take_well_under_two_seconds() -> None:
    generator = random.Random(0)
    documents = [[BOS] * generator.randint(2, 1_500) for _ in range(2_700)]
    started = time.process_time()
    packed = pack_documents(documents, 257, keep_rest=True)
    assert packed.read_tokens > 1_900_000
    assert time.process_time() - started < 2


def conversations(sizes: list[int]) -> list[Rendered]:
    return [Rendered(ids, [at % 2 for at in range(len(ids))]) for ids in corpus(sizes)]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(2, 30), st.integers(1, 20))
def test_conversations_are_kept_whole_or_reported(sizes: list[int], row_tokens: int, buffer: int) -> None:
    rendered = conversations(sizes)
    packed = pack_conversations(rendered, row_tokens, PAD, buffer_conversations=buffer)
    found = []
    for ids, mask, segments in zip(packed.ids, packed.mask, packed.segments, strict=True):
        assert segments[0] == 0, "no row is padding alone"
        for segment in range(segments.max() + 1):
            here = segments == segment
            found.append((ids[here].tolist(), mask[here].tolist()))
        assert (ids[segments == PAD_SEGMENT] == PAD).all() and (mask[segments == PAD_SEGMENT] == 0).all()
    assert packed.dropped == [index for index, size in enumerate(sizes) if size > row_tokens]
    kept = [item for index, item in enumerate(rendered) if index not in packed.dropped]
    assert sorted(found) == sorted((item.ids, item.mask) for item in kept)
    assert (packed.ids.dtype, packed.mask.dtype, packed.segments.dtype) == (np.int32, np.int8, np.int32)


@settings(max_examples=20)
@given(st.integers(1, 300))
def test_long_conversations_never_clog_the_buffer(too_long: int) -> None:
    """Guards the kind of karpathy/nanochat#590: rows of nothing but padding once the buffer holds only long items."""
    packed = pack_conversations(conversations([50] * too_long + [8, 8]), 16, PAD, buffer_conversations=10)
    assert packed.ids.shape == (1, 16) and len(packed.dropped) == too_long


def test_conversations_share_a_row_where_they_fit() -> None:
    packed = pack_conversations(conversations([9, 7, 6, 4, 3, 3]), 16, PAD)
    assert packed.segments.tolist() == [[0] * 9 + [1] * 7, [0] * 6 + [1] * 4 + [2] * 3 + [3] * 3]


def test_a_mask_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="conversation 1 has 3 ids and 2 mask values"):
        pack_conversations([Rendered([0, 1], [0, 1]), Rendered([0, 1, 2], [0, 1])], 8, PAD)
