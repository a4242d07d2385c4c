from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.inference.choosing import Choosing, choose, choosing, truncated
from nanocode.inference.sampling import Sampling

VOCAB = 40
PAD = VOCAB - 1
MADE = np.random.default_rng(5).normal(0, 2, (3, VOCAB)).astype(np.float32)

truncate = jax.jit(truncated)


def by_sorting(logits: np.ndarray, sampling: Sampling) -> np.ndarray:
    """(V,) bool: what the rules keep, from the sorted list of one row."""
    shares = np.exp(logits - logits.max(), dtype=np.float64)
    shares /= shares.sum()
    kept = np.ones(len(logits), bool)
    if sampling.top_k:
        kept &= shares >= np.sort(shares)[::-1][min(sampling.top_k, len(shares)) - 1]
    if sampling.top_p < 1:
        ordered = np.sort(shares[kept])[::-1]
        first = np.flatnonzero(np.cumsum(ordered) >= sampling.top_p * ordered.sum() * (1 - 1e-6))[0]
        kept &= shares >= ordered[first]
    return kept & (shares >= sampling.min_p * shares.max() * (1 - 1e-6))


@given(
    seed=st.integers(0, 1_000),
    top_k=st.integers(1, 60),
    top_p=st.floats(0.01, 0.99),
    min_p=st.floats(0.001, 1.0),
    switched=st.tuples(st.booleans(), st.booleans(), st.booleans()),
)
def test_what_is_kept_is_what_sorting_keeps(
    seed: int, top_k: int, top_p: float, min_p: float, switched: tuple[bool, bool, bool]
) -> None:
    sampling = Sampling(1.0, top_k * switched[0], top_p if switched[1] else 1.0, min_p * switched[2])
    logits = np.random.default_rng(seed).normal(0, 3, (2, VOCAB)).astype(np.float32)
    kept = np.isfinite(truncate(logits, choosing(sampling)))
    for row in range(2):
        assert kept[row].tolist() == by_sorting(logits[row], sampling).tolist()


def test_ties_are_kept_together_and_masked_tokens_never() -> None:
    logits = np.array([[2.0, 2.0, 1.0, -np.inf, -np.inf]], np.float32)
    for top_k, expected in ((1, [1, 1, 0, 0, 0]), (2, [1, 1, 0, 0, 0]), (3, [1, 1, 1, 0, 0]), (5, [1, 1, 1, 0, 0])):
        kept = np.isfinite(truncate(logits, choosing(Sampling(1.0, top_k=top_k))))
        assert kept[0].tolist() == [bool(one) for one in expected]


def test_numbers_recompile_nothing_and_switches_do() -> None:
    counted = jax.jit(lambda logits, how: truncated(logits, how))
    for sampling in (Sampling(0.5, 3), Sampling(0.9, 7), Sampling(1.5, 2, seed=4)):
        counted(MADE, choosing(sampling))
    assert counted._cache_size() == 1
    counted(MADE, choosing(Sampling(0.5, 3, top_p=0.9)))
    assert counted._cache_size() == 2


def drawn(sampling: Sampling, logits: np.ndarray = MADE, position: int = 4) -> jax.Array:
    rows = len(logits)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(sampling.seed), jnp.arange(rows))
    chosen = jax.jit(choose, static_argnames="pad")(
        logits, choosing(sampling), keys, jnp.full(rows, position), jnp.zeros(rows, jnp.int32), pad=PAD
    )
    return chosen


def test_greedy_takes_the_first_likeliest_and_never_padding() -> None:
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, [7, 9]], logits[1, PAD] = 1.0, 50.0
    assert drawn(Sampling(), logits).tokens.tolist() == [7, 0]


def test_a_draw_is_jax_s_own_categorical_of_the_row_s_key_and_position() -> None:
    sampling, position = Sampling(0.7, seed=11), 6
    masked = MADE.copy()
    masked[:, PAD] = -np.inf
    expected = [
        int(
            jax.random.categorical(
                jax.random.fold_in(jax.random.fold_in(jax.random.key(11), row), position),
                masked[row] / np.float32(0.7),
            )
        )
        for row in range(3)
    ]
    assert drawn(sampling, position=position).tokens.tolist() == expected


def test_log_probabilities_are_of_the_untempered_whole_distribution() -> None:
    chosen = drawn(Sampling(5.0, top_k=3, seed=1))
    whole = np.log(np.exp(MADE) / np.exp(MADE).sum(axis=-1, keepdims=True))
    tokens = np.asarray(chosen.tokens)
    np.testing.assert_allclose(chosen.log_probabilities(tokens), whole[np.arange(3), tokens], rtol=1e-5)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"temperature": -0.1}, "temperature must be 0"),
        ({"temperature": float("nan")}, "temperature must be 0"),
        ({"top_k": -1}, "top_k must be 0"),
        ({"top_p": 0.0}, "top_p must be above 0"),
        ({"top_p": 1.1}, "top_p must be above 0"),
        ({"min_p": -0.5}, "min_p must be between"),
        ({"seed": -1}, "seed must be a whole number"),
    ],
)
def test_numbers_out_of_range_are_refused(values: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Sampling(**values)


def test_greedy_switches_everything_off() -> None:
    assert choosing(Sampling(0.0, 5, 0.5, 0.1)) == Choosing(None, None, None, None, None)
