"""Cross-entropy under the output head, a few positions at a time: the logits of a vocabulary never stand whole.

Logits are ``softcap * tanh(x @ table.T / softcap)`` in float32. `weighted_nll` makes its gradient while it goes
forward, since the logits of a chunk are at hand then and are not worth keeping: three products with the table instead
of four, and one chunk of memory. `token_log_probs` gives every token's figure, for losses that are not a weighted sum;
going backward it makes the logits again.

Letters in shapes: B batch, T positions, C width, V vocabulary, G groups of rows (the parts of a batch on a mesh).
"""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from nanocode.training.sharding import ROWS, constrain

CHUNK_POSITIONS = 64
"""Positions of every row that are worked on at once: on CPUs a chunk's logits stay near the cache."""


class Head(NamedTuple):
    """What turns the last normed stream into logits."""

    table: jax.Array  # (V, C), padding cropped
    softcap: float


def token_log_probs(x: jax.Array, head: Head, targets: jax.Array) -> jax.Array:
    """(B, T, C) stream and (B, T) ids -> (B, T) float32 log-probabilities of the targets, in nats."""

    @jax.checkpoint
    def chunk(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        logits = _capped(_products(part[0], head.table), head.softcap)
        chosen = jnp.take_along_axis(logits, part[1][..., None], axis=-1)[..., 0]
        return None, chosen - jax.nn.logsumexp(logits, axis=-1)

    _, log_probs = jax.lax.scan(chunk, None, (_chunks(x), _chunks(targets)))
    return _whole(log_probs, x.shape[1])


def weighted_nll(x: jax.Array, head: Head, targets: jax.Array, weights: jax.Array) -> jax.Array:
    """Sum over (B, T) of `weights` times the negative log-likelihood of the targets, in nats: a float32 scalar.

    The weights are constants: no gradient goes to them.
    """
    return _weighted_nll(head.softcap, x, head.table, targets, weights)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _weighted_nll(softcap: float, x: jax.Array, table: jax.Array, targets: jax.Array, weights: jax.Array) -> jax.Array:
    return -jnp.sum(token_log_probs(x, Head(table, softcap), targets) * weights)


def _forward(
    softcap: float, x: jax.Array, table: jax.Array, targets: jax.Array, weights: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The value, and the gradients to x and to the table for a cotangent of one."""
    groups = _row_groups(x.shape[0])

    def chunk(
        sums: tuple[jax.Array, jax.Array], part: tuple[jax.Array, jax.Array, jax.Array]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        own, ids, weight = part
        logits = _capped(_products(own, table), softcap)
        highest = jnp.max(logits, axis=-1, keepdims=True)
        powers = jnp.exp(logits - highest)
        total = jnp.sum(powers, axis=-1, keepdims=True)
        hit = jnp.arange(table.shape[0]) == ids[..., None]
        chosen = jnp.sum(jnp.where(hit, logits, 0.0), axis=-1)
        nll = (highest + jnp.log(total))[..., 0] - chosen
        slope = 1.0 - jnp.square(logits / softcap)  # of the softcap
        to_products = ((weight[..., None] / total) * powers - jnp.where(hit, weight[..., None], 0.0)) * slope
        to_products = to_products.astype(own.dtype)
        to_table = jnp.einsum(
            "gbtv,gbtc->gvc",
            *(_grouped(array, groups) for array in (to_products, own)),
            preferred_element_type=jnp.float32,
        )
        to_own = jnp.einsum("btv,vc->btc", to_products, table.astype(own.dtype))
        return (sums[0] + jnp.sum(nll * weight), constrain(sums[1] + to_table, ROWS, "tensor")), to_own

    # Every part of the mesh sums up its own rows: one reduction after the last chunk, not one a chunk.
    start = (jnp.zeros(()), constrain(jnp.zeros((groups, *table.shape)), ROWS, "tensor"))
    (value, to_table), to_x = jax.lax.scan(chunk, start, (_chunks(x), _chunks(targets), _chunks(weights)))
    return value, (_whole(to_x, x.shape[1]), jnp.sum(to_table, axis=0).astype(table.dtype))


def _backward(
    softcap: float, gradients: tuple[jax.Array, jax.Array], cotangent: jax.Array
) -> tuple[jax.Array, jax.Array, None, None]:
    to_x, to_table = gradients
    return (cotangent * to_x).astype(to_x.dtype), (cotangent * to_table).astype(to_table.dtype), None, None


_weighted_nll.defvjp(_forward, _backward)


def _products(x: jax.Array, table: jax.Array) -> jax.Array:
    """(B, t, C) -> (B, t, V) float32."""
    return jnp.einsum("btc,vc->btv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


def _capped(products: jax.Array, softcap: float) -> jax.Array:
    return softcap * jnp.tanh(products / softcap)


def _chunks(array: jax.Array) -> jax.Array:
    """(B, T, ...) -> (T / chunk, B, chunk, ...), zeros appended to fill the last. Rows stay whole: on a mesh each
    device keeps its own.
    """
    rows, positions = array.shape[:2]
    size = min(CHUNK_POSITIONS, positions)
    filled = jnp.pad(array, ((0, 0), (0, -positions % size)) + ((0, 0),) * (array.ndim - 2))
    return filled.reshape(rows, -1, size, *array.shape[2:]).swapaxes(0, 1)


def _whole(chunks: jax.Array, positions: int) -> jax.Array:
    """What `_chunks` made, put together again."""
    count, rows, size = chunks.shape[:3]
    return chunks.swapaxes(0, 1).reshape(rows, count * size, *chunks.shape[3:])[:, :positions]


def _grouped(array: jax.Array, groups: int) -> jax.Array:
    return array.reshape(groups, -1, *array.shape[1:])


def _row_groups(rows: int) -> int:
    """Into how many parts the mesh that this runs under splits the rows."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else math.gcd(rows, math.prod(mesh.shape[axis] for axis in ROWS))
