"""Pair batches: a pure function of the seed, joined to their reference by content, never by position."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.conversation import Rendered
from nanocode.training.pairs import LogProbs, Pair, batch, collate, plan, row_tokens

CONTEXT = 32
PAD = 9


def pair(name: str, chosen: int, rejected: int) -> Pair:
    def side(length: int) -> Rendered:
        return Rendered([1] * length, [0] + [1] * (length - 1))

    return Pair(name, side(chosen), side(rejected))


PAIRS = [pair(f"p{index}", 4 + index, 30 - index) for index in range(20)]


def test_a_plan_depends_on_the_seed_alone() -> None:
    first = plan(PAIRS, CONTEXT, 4, 10, seed=1)
    assert first == plan(PAIRS, CONTEXT, 4, 10, seed=1)
    assert first != plan(PAIRS, CONTEXT, 4, 10, seed=2)
    assert first[:6] == plan(PAIRS, CONTEXT, 4, 6, seed=1)


@given(lengths=st.lists(st.integers(2, CONTEXT), min_size=8, max_size=40), steps=st.integers(1, 12))
def test_no_batch_mixes_short_and_long_pairs(lengths: list[int], steps: int) -> None:
    pairs = [pair(f"p{index}", length, 2) for index, length in enumerate(lengths)]
    for indices in plan(pairs, CONTEXT, 4, steps, seed=0):
        assert len(indices) == 4
        assert len({row_tokens(pairs[index], CONTEXT) for index in indices}) == 1


def test_every_pair_is_drawn_before_any_is_drawn_a_third_time() -> None:
    same_length = [pair(f"p{index}", 10, 10) for index in range(8)]
    drawn = [index for indices in plan(same_length, CONTEXT, 4, 4, seed=3) for index in indices]
    assert sorted(drawn[:8]) == sorted(drawn[8:]) == list(range(8))


def test_too_few_pairs_for_any_batch_are_refused() -> None:
    with pytest.raises(ValueError, match="0 pairs cannot fill batches of 4"):
        plan([], CONTEXT, 4, 1, seed=0)


def test_chosen_rows_stand_before_rejected_ones_and_padding_teaches_nothing() -> None:
    rows = collate([pair("a", 3, 5), pair("b", 2, 2)], 8, PAD)
    assert rows.ids.shape == (4, 8)
    assert [int((row != PAD).sum()) for row in rows.ids] == [3, 2, 5, 2]
    assert np.all(rows.mask[rows.ids == PAD] == 0)
    assert np.all(rows.segments[rows.ids == PAD] == -1)


def test_the_reference_is_joined_on_the_id_whatever_the_order() -> None:
    reference = {item.id: LogProbs(-float(index), -2.0 * index) for index, item in enumerate(PAIRS)}
    shuffled = [PAIRS[5], PAIRS[2], PAIRS[7]]
    drawn = batch(shuffled, dict(reversed(reference.items())), CONTEXT, PAD)
    assert drawn.reference_chosen.tolist() == [-5.0, -2.0, -7.0]
    assert drawn.reference_rejected.tolist() == [-10.0, -4.0, -14.0]


def test_a_pair_without_reference_is_an_error() -> None:
    with pytest.raises(KeyError):
        batch(PAIRS[:1], {}, CONTEXT, PAD)
