"""The loader: batches are a function of (seed, step), epochs are permutations, the mixture keeps its weights."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.loader import TokenRows, counts, locate, mixture_tree

WIDTH = 5

weights = st.lists(st.floats(0.01, 100).map(lambda value: round(value, 3)), min_size=1, max_size=7)


@dataclass(frozen=True)
class Rows:
    """Rows of consecutive integers, whose segments and mask follow from them."""

    name: str
    count: int
    weight: float = 1.0
    first: int = 0
    masked: bool = True
    row_tokens: int = WIDTH

    def __len__(self) -> int:
        return self.count

    def read(self, row: int, ids: np.ndarray, segments: np.ndarray, mask: np.ndarray | None) -> None:
        ids[:] = self.first + row * self.row_tokens + np.arange(self.row_tokens)
        segments[:] = ids % 3
        if mask is not None:
            mask[:] = ids % 2


def loader(seed: int = 7, batch_rows: int = 4) -> TokenRows:
    return TokenRows([Rows("docs", 11), Rows("code", 6, 0.5, first=1_000)], batch_rows, seed)


def test_a_batch_does_not_depend_on_what_was_asked_before() -> None:
    in_order = [loader().batch(step) for step in range(40)]
    shuffled = list(range(40))
    random.Random(0).shuffle(shuffled)
    one = loader()
    for step in shuffled:
        for field in ("ids", "segments", "mask"):
            assert np.array_equal(getattr(one.batch(step), field), getattr(in_order[step], field))


def test_a_resumed_run_sees_exactly_the_batches_it_missed() -> None:
    uninterrupted = [loader().batch(step).ids.tolist() for step in range(30)]
    before, after = loader(), loader()
    resumed = [before.batch(step).ids.tolist() for step in range(13)]
    resumed += [after.batch(step).ids.tolist() for step in range(13, 30)]
    assert resumed == uninterrupted


def test_seeds_give_different_orders() -> None:
    assert not np.array_equal(loader(1).batch(0).ids, loader(2).batch(0).ids)


@given(st.integers(1, 40), st.integers(0, 5), st.integers(0, 2**32))
def test_every_row_comes_exactly_once_an_epoch(count: int, epoch: int, seed: int) -> None:
    source = TokenRows([Rows("only", count)], 1, seed)
    places = [source.place(epoch * count + offset) for offset in range(count)]
    assert sorted(place.row for place in places) == list(range(count))
    assert {place.epoch for place in places} == {epoch}


def test_each_epoch_has_its_own_order() -> None:
    source = TokenRows([Rows("only", 50)], 50, 3)
    assert not np.array_equal(source.batch(0).ids, source.batch(1).ids)


@given(weights, st.integers(0, 3_000))
def test_every_prefix_keeps_the_weights_within_one_row_or_two(shares: list[float], prefix: int) -> None:
    drawn = counts(mixture_tree(shares), prefix)
    assert sum(drawn.values()) == prefix
    allowed = 1.0 if len(shares) <= 3 else 2.0
    for index, share in enumerate(shares):
        assert abs(drawn[index] - prefix * share / sum(shares)) <= allowed + 1e-6


@given(weights, st.integers(1, 400))
def test_random_access_equals_counting_from_the_start(shares: list[float], length: int) -> None:
    tree = mixture_tree(shares)
    had = [0] * len(shares)
    for index in range(length):
        source, local = locate(tree, index)
        assert local == had[source]
        had[source] += 1
    assert {index: count for index, count in enumerate(had) if count} == {
        index: count for index, count in counts(tree, length).items() if count
    }


def test_the_mixture_holds_at_a_trillion_rows() -> None:
    drawn = counts(mixture_tree([0.8, 0.2]), 10**12 + 3)
    assert drawn == {0: 800_000_000_002, 1: 200_000_000_001}


def test_an_added_source_leaves_the_order_of_the_others_alone() -> None:
    alone = TokenRows([Rows("docs", 30)], 1, 5)
    joined = TokenRows([Rows("new", 9, 3.0), Rows("docs", 30)], 1, 5)
    docs = [place.row for place in map(joined.place, range(200)) if place.source == 1]
    assert docs[:30] == [alone.place(index).row for index in range(30)]


@pytest.mark.parametrize("hosts", [1, 2, 3, 6])
def test_hosts_together_read_the_batch_that_one_host_reads(hosts: int) -> None:
    """Rows, and with them the mixture, do not depend on the number of hosts."""
    own = 6 // hosts
    for step in (0, 9, 10**6):
        whole = loader(batch_rows=6).batch(step)
        parts = [loader(batch_rows=6).batch(step, host * own, (host + 1) * own) for host in range(hosts)]
        for field in ("ids", "segments", "mask"):
            assert np.array_equal(np.concatenate([getattr(part, field) for part in parts]), getattr(whole, field))


def test_batches_are_fresh_arrays() -> None:
    """Guards the kind of a loader that yields the same buffers again and again."""
    source = loader()
    first = source.batch(0)
    kept = first.ids.copy()
    second = source.batch(0)
    second.ids[:] = -1
    assert np.array_equal(first.ids, kept) and np.array_equal(source.batch(0).ids, kept)


def test_sources_without_a_mask_give_none() -> None:
    assert TokenRows([Rows("plain", 3, masked=False)], 2, 0).batch(0).mask is None


def test_rows_keep_ids_mask_and_segments_together() -> None:
    batch = loader().batch(3)
    assert batch.mask is not None
    assert np.array_equal(batch.segments, batch.ids % 3) and np.array_equal(batch.mask, batch.ids % 2)
    assert (batch.ids.dtype, batch.mask.dtype) == (np.int32, np.int8)


def test_epochs_say_how_often_a_source_is_read() -> None:
    assert loader(batch_rows=3).epochs(11) == {"docs": 22 / 11, "code": 11 / 6}


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        ([], "no sources"),
        ([Rows("empty", 0)], "'empty' has no rows"),
        ([Rows("a", 2), Rows("a", 2)], "share a name"),
        ([Rows("a", 2, weight=0.0)], "weight must be positive"),
        ([Rows("a", 2), Rows("b", 2, masked=False)], "some have none"),
        ([Rows("a", 2), Rows("b", 2, row_tokens=4)], "different length"),
    ],
)
def test_sources_that_do_not_fit_together_are_refused(sources: list[Rows], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        TokenRows(sources, 1, 0)


def test_a_batch_of_no_rows_and_a_step_before_the_first_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        loader(batch_rows=0)
    with pytest.raises(ValueError, match="start at 0"):
        loader().batch(-1)
