from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nanocode.training.cross_entropy import CHUNK_POSITIONS, Head, token_log_probs, weighted_nll

SOFTCAP = 15.0


def example(rows: int, positions: int, vocab: int = 50, width: int = 12) -> tuple[np.ndarray, ...]:
    """Stream, table, targets and weights; a third of the weights are zero."""
    rng = np.random.default_rng(positions)
    weights = rng.random((rows, positions)) * (rng.random((rows, positions)) > 1 / 3)
    targets = rng.integers(0, vocab, (rows, positions))
    return rng.normal(0, 2, (rows, positions, width)), rng.normal(0, 2, (vocab, width)), targets, weights


def reference(x: np.ndarray, table: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, ...]:
    """In float64, from the definition: log-probs, the weighted sum, and its gradients to x and to the table."""
    products = x @ table.T
    logits = SOFTCAP * np.tanh(products / SOFTCAP)
    powers = np.exp(logits - logits.max(-1, keepdims=True))
    shares = powers / powers.sum(-1, keepdims=True)
    hit = np.eye(len(table))[targets]
    log_probs = np.sum(np.log(shares) * hit, axis=-1)
    to_products = weights[..., None] * (shares - hit) / np.cosh(products / SOFTCAP) ** 2
    gradients = to_products @ table, np.einsum("btv,btc->vc", to_products, x)
    return log_probs, -np.sum(log_probs * weights), *gradients


def nll(x: jax.Array, table: jax.Array, targets: np.ndarray, weights: np.ndarray) -> jax.Array:
    return weighted_nll(x, Head(table, SOFTCAP), jnp.asarray(targets), jnp.asarray(weights, jnp.float32))


def in_float32(*arrays: np.ndarray) -> list[jax.Array]:
    return [jnp.asarray(array, jnp.float32) for array in arrays]


@pytest.mark.parametrize(
    ("rows", "positions"), [(1, 1), (3, CHUNK_POSITIONS), (2, CHUNK_POSITIONS + 1), (1, 3 * CHUNK_POSITIONS)]
)
def test_value_and_gradients_are_those_of_the_definition(rows: int, positions: int) -> None:
    x, table, targets, weights = example(rows, positions)
    log_probs, value, *gradients = reference(x, table, targets, weights)
    narrow = in_float32(x, table)
    np.testing.assert_allclose(
        token_log_probs(narrow[0], Head(narrow[1], SOFTCAP), jnp.asarray(targets)), log_probs, atol=2e-5
    )
    found, found_gradients = jax.value_and_grad(nll, argnums=(0, 1))(*narrow, targets, weights)
    assert float(found) == pytest.approx(value, rel=1e-5)
    for own, expected in zip(found_gradients, gradients, strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-4)


def test_the_two_ways_agree_under_any_cotangent() -> None:
    """The gradient made on the way forward, times a factor, is the one made on the way back."""
    x, table, targets, weights = example(2, 70)
    narrow = in_float32(x, table)

    def by_token(x: jax.Array, table: jax.Array) -> jax.Array:
        return -3.0 * jnp.sum(token_log_probs(x, Head(table, SOFTCAP), jnp.asarray(targets)) * weights)

    def at_once(x: jax.Array, table: jax.Array) -> jax.Array:
        return 3.0 * nll(x, table, targets, weights)

    for one, other in zip(*(jax.grad(way, argnums=(0, 1))(*narrow) for way in (by_token, at_once)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_logits_at_the_cap_stay_finite() -> None:
    """Products of 10^4 are 15 after the cap: probabilities saturate and gradients vanish, nothing overflows."""
    x, table = 1e2 * jnp.ones((1, 3, 4)), jnp.concatenate([1e2 * jnp.ones((1, 4)), -1e2 * jnp.ones((1, 4))])
    value, gradient = jax.value_and_grad(nll)(x, table, np.array([[0, 1, 0]]), np.ones((1, 3)))
    assert float(value) == pytest.approx(30.0, rel=1e-6)
    np.testing.assert_allclose(gradient, 0, atol=1e-6)


def test_no_array_of_the_whole_logits_is_made() -> None:
    """2 rows of 640 positions over 5,000 words would be 6.4M floats: a chunk's tenth is the largest array there is."""
    x, table, targets, weights = example(2, 640, vocab=5_000)
    for way in (nll, lambda x, table, ids, _: jnp.sum(token_log_probs(x, Head(table, SOFTCAP), ids))):
        program = jax.make_jaxpr(jax.grad(way, argnums=(0, 1)))(*in_float32(x, table), targets, weights)
        largest = max(variable.aval.size for equation in _equations(program.jaxpr) for variable in equation.outvars)
        assert largest <= 2 * CHUNK_POSITIONS * 5_000


def _equations(jaxpr: Any) -> list[Any]:
    """All equations of a program, those of loops and calls inside it too."""
    values = [value for equation in jaxpr.eqns for value in jax.tree.leaves(list(equation.params.values()))]
    inner = [getattr(value, "jaxpr", value) for value in values]
    return [*jaxpr.eqns, *(equation for own in inner if hasattr(own, "eqns") for equation in _equations(own))]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_gradients_have_the_types_of_what_they_belong_to(dtype: jnp.dtype) -> None:
    x, table, targets, weights = example(2, 9)
    gradients = jax.grad(nll, argnums=(0, 1))(jnp.asarray(x, dtype), jnp.asarray(table, jnp.float32), targets, weights)
    assert [gradient.dtype for gradient in gradients] == [dtype, jnp.float32]
