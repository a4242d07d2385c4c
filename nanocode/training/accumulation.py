"""A batch in parts: what a device cannot hold at once goes through the model piece by piece, with one update at the
end.

The loss is a mean over the targets of the *whole* batch, and parts hold different numbers of targets. So a part counts
by its share of the targets; a mean of means would weigh a target by how empty the rest of its part is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from nanocode.training.losses import Batch, target_mask
from nanocode.training.pairs import PairBatch
from nanocode.training.sharding import ROWS, Layout, check_rows, constrain, fewest_parts

Gradients = Callable[[Any, Any], tuple[tuple[jax.Array, dict[str, jax.Array]], Any]]
"""(parameters, batch) -> ((loss, named scalars), gradients), as jax.value_and_grad returns it."""


def part_count(batch: Batch | PairBatch, asked: Layout, device_batch_rows: int | None) -> int:
    """The fewest equal parts in which no device computes more than `device_batch_rows` rows; a pair stays together.

    Raises ConfigError when the rows do not divide over the mesh.
    """
    rows_each = 2 if isinstance(batch, PairBatch) else 1
    units = (batch.rows if isinstance(batch, PairBatch) else batch).ids.shape[0] // rows_each
    check_rows(asked, units, "pairs" if rows_each == 2 else "rows")
    limit = None if device_batch_rows is None else max(1, device_batch_rows // rows_each)
    return fewest_parts(units // asked.row_shards, limit)


def accumulated(gradients: Gradients, parts: int) -> Gradients:
    """Like `gradients`, computed in `parts` one after the other; sums are kept in float32."""
    if parts == 1:
        return gradients

    def whole(parameters: Any, batch: Batch | PairBatch) -> tuple[tuple[jax.Array, dict[str, jax.Array]], Any]:
        pieces = split(batch, parts)
        targets = jax.vmap(weight)(pieces)
        shares = targets / jnp.maximum(1.0, jnp.sum(targets))

        def add(total: Any, piece: tuple[jax.Array, Any]) -> tuple[Any, None]:
            share, rows = piece
            return jax.tree.map(lambda sum_, x: sum_ + share * x, total, gradients(parameters, rows)), None

        shapes = jax.eval_shape(gradients, parameters, jax.tree.map(lambda leaf: leaf[0], pieces))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, jnp.float32), shapes)
        total, _ = jax.lax.scan(add, zeros, (shares, pieces))
        return jax.tree.map(lambda leaf, like: leaf.astype(like.dtype), total, shapes)

    return whole


def weight(batch: Batch | PairBatch) -> jax.Array:
    """What a part counts by: its targets, or its pairs where the loss is a mean over pairs. () float32."""
    if isinstance(batch, PairBatch):
        return jnp.float32(batch.reference_chosen.shape[0])
    return jnp.sum(target_mask(batch))


def split(batch: Batch | PairBatch, parts: int) -> Any:
    """Part i holds every `parts`-th row from i, on a new first axis: no row leaves the device that holds it."""
    if isinstance(batch, PairBatch):
        halves = jax.tree.map(lambda leaf: leaf.reshape(2, -1, *leaf.shape[1:]), batch.rows)
        sides = [jax.tree.map(lambda leaf, side=side: _strided(leaf[side], parts), halves) for side in (0, 1)]
        rows = jax.tree.map(lambda chosen, rejected: jnp.concatenate([chosen, rejected], axis=1), *sides)
        return PairBatch(rows, _strided(batch.reference_chosen, parts), _strided(batch.reference_rejected, parts))
    return jax.tree.map(lambda leaf: _strided(leaf, parts), batch)


def _strided(leaf: Any, parts: int) -> jax.Array:
    """(B, ...) -> (parts, B / parts, ...)."""
    return constrain(jnp.swapaxes(leaf.reshape(-1, parts, *leaf.shape[1:]), 0, 1), None, ROWS)
