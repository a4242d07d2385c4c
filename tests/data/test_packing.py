"""Packing plans: properties on random lengths, and identity with a naive reading of nanochat's rule."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_reference import corpus, pack_documents

from nanocode.data.packing import PackingPlan, plan_conversations, plan_documents

BOS = 0

lengths = st.lists(st.integers(1, 60), max_size=80)


def sizes_array(sizes: list[int]) -> np.ndarray:
    return np.array(sizes, dtype=np.int64)


def rows_of(plan: PackingPlan, documents: list[list[int]]) -> list[list[int]]:
    """The plan's rows, spelled out from its definition."""
    rows = []
    for first, last in zip(plan.rows[:-1], plan.rows[1:], strict=True):
        row: list[int] = []
        for document, start, stop in plan.pieces[first:last].tolist():
            row += documents[document][:1] if start > 0 else []
            row += documents[document][start:stop]
        rows.append(row)
    return rows


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.integers(1, 9), st.booleans())
def test_rows_equal_the_naive_rule(sizes: list[int], row_tokens: int, buffer: int, refill: int, keep: bool) -> None:
    documents = corpus(sizes)
    plan = plan_documents(
        sizes_array(sizes), row_tokens, buffer_documents=buffer, refill_documents=refill, keep_rest=keep
    )
    assert rows_of(plan, documents) == pack_documents(documents, row_tokens, buffer, refill, keep)


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.booleans())
def test_every_token_is_accounted_for(sizes: list[int], row_tokens: int, buffer: int, keep_rest: bool) -> None:
    plan = plan_documents(sizes_array(sizes), row_tokens, buffer_documents=buffer, keep_rest=keep_rest)
    rows = rows_of(plan, corpus(sizes))
    assert {len(row) for row in rows} <= {row_tokens}
    assert plan.read_tokens == sum(sizes)
    assert plan.cropped_tokens >= 0 and plan.tail_tokens >= 0
    body = [token for row in rows for token in row if token != BOS]
    assert len(set(body)) == len(body), "no token is trained on twice"
    if keep_rest:
        assert plan.cropped_tokens == 0
        assert 0 <= sum(sizes) - len(sizes) - len(body) <= plan.tail_tokens
    else:
        assert plan.added_bos == 0


@given(lengths, st.integers(2, 40), st.integers(1, 30), st.booleans())
def test_every_piece_lies_in_its_document_and_opens_with_bos(
    sizes: list[int], row_tokens: int, buffer: int, keep: bool
) -> None:
    plan = plan_documents(sizes_array(sizes), row_tokens, buffer_documents=buffer, keep_rest=keep)
    document, start, stop = plan.pieces.astype(np.int64).T
    assert (start <= stop).all() and (stop <= sizes_array(sizes)[document]).all()
    assert (stop > 0).all(), "a piece from the start of a document holds its BOS at least"
    assert (plan.rows.dtype, plan.pieces.dtype) == (np.int64, np.uint32)
    assert all(row[0] == BOS for row in rows_of(plan, corpus(sizes)))


def test_documents_shorter_than_the_space_are_never_cropped_while_something_fits() -> None:
    plan = plan_documents(sizes_array([5, 4, 4, 3]), 8)
    assert plan.pieces.tolist() == [[0, 0, 5], [3, 0, 3], [1, 0, 4], [2, 0, 4]], "5 + 3, not 5 + a piece of 4"


def test_documents_much_longer_than_a_row_are_lost_unless_the_rest_is_kept() -> None:
    sizes = sizes_array([900] * 20)
    assert plan_documents(sizes, 100).cropped_share > 0.85
    kept = plan_documents(sizes, 100, keep_rest=True)
    assert kept.cropped_share == 0 and len(kept) * 100 > sizes.sum()


def test_no_documents_give_no_rows() -> None:
    plan = plan_documents(sizes_array([]), 9)
    assert (len(plan), plan.pieces.shape, plan.tail_tokens) == (0, (0, 3), 0)


def test_text_that_does_not_fill_a_row_ends_in_no_rows_instead_of_waiting_for_more() -> None:
    """Guards the kind of a loader that spins for ever over a corpus too small for one row."""
    for keep_rest in (False, True):
        assert len(plan_documents(sizes_array([3]), 9, keep_rest=keep_rest)) == 0


def test_an_empty_document_and_a_row_without_a_target_are_refused() -> None:
    with pytest.raises(ValueError, match="empty document"):
        plan_documents(sizes_array([4, 0]), 8)
    with pytest.raises(ValueError, match="at least two tokens"):
        plan_documents(sizes_array([2]), 1)


def test_a_document_takes_microseconds_and_bytes_to_plan() -> None:
    """A hundred thousand here; ten million, the corpus of a large model, take a hundred times as long and as much."""
    sizes = np.random.default_rng(0).integers(2, 3_000, 100_000)
    started = time.process_time()
    plan = plan_documents(sizes, 2_049, keep_rest=True)
    assert (time.process_time() - started) / len(sizes) < 50e-6
    assert (plan.pieces.nbytes + plan.rows.nbytes) / len(sizes) < 40


def conversations_of(plan: PackingPlan) -> list[list[int]]:
    """The documents of each row."""
    ends = zip(plan.rows[:-1], plan.rows[1:], strict=True)
    return [plan.pieces[first:last, 0].tolist() for first, last in ends]


@given(st.lists(st.integers(1, 40), max_size=60), st.integers(2, 30), st.integers(1, 20))
def test_conversations_are_kept_whole_or_reported(sizes: list[int], row_tokens: int, buffer: int) -> None:
    plan, too_long = plan_conversations(sizes_array(sizes), row_tokens, buffer_conversations=buffer)
    assert too_long.tolist() == [index for index, size in enumerate(sizes) if size > row_tokens]
    assert all(row and sum(sizes[document] for document in row) <= row_tokens for row in conversations_of(plan))
    assert [list(piece[1:]) for piece in plan.pieces] == [[0, sizes[piece[0]]] for piece in plan.pieces]
    packed = sorted(document for row in conversations_of(plan) for document in row)
    assert packed == sorted(set(range(len(sizes))) - set(too_long.tolist()))


@settings(max_examples=20)
@given(st.integers(1, 300))
def test_long_conversations_never_clog_the_buffer(too_many: int) -> None:
    """Guards the kind of karpathy/nanochat#590: rows of nothing but padding once the buffer holds only long items."""
    plan, too_long = plan_conversations(sizes_array([50] * too_many + [8, 8]), 16, buffer_conversations=10)
    assert conversations_of(plan) == [[too_many, too_many + 1]] and len(too_long) == too_many


def test_conversations_share_a_row_where_they_fit() -> None:
    plan, _ = plan_conversations(sizes_array([9, 7, 6, 4, 3, 3]), 16)
    assert conversations_of(plan) == [[0, 1], [2, 3, 4, 5]]
