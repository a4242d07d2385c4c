"""Splash attention over eight devices (interpreted) against the blockwise path on one: prints the differences."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from nanocode.model.attention import blockwise_attention
from nanocode.model.splash import splash_attention

WINDOW = 10


def loss(attention: Callable[..., jax.Array], *arguments: jax.Array) -> jax.Array:
    return (attention(*arguments, WINDOW) ** 2).sum()


def compare(rows: int, heads: int, kv_heads: int) -> dict[str, object]:
    """The greatest difference of loss and gradients, and the collectives in the compiled program."""
    rng = np.random.default_rng(0)
    qkv = [rng.normal(size=(rows, 40, count, 8)).astype(np.float32) for count in (heads, kv_heads, kv_heads)]
    arguments = (*qkv, np.sort(rng.integers(0, 3, (rows, 40)), axis=1))
    expected = jax.jit(jax.value_and_grad(partial(loss, blockwise_attention), argnums=(0, 1, 2)))(*arguments)
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        over_rows = ("data", "fsdp") if rows % 4 == 0 else None
        split = NamedSharding(mesh, PartitionSpec(over_rows, None, "tensor" if kv_heads % 2 == 0 else None))
        placed = [jax.device_put(x, split) for x in qkv] + [
            jax.device_put(arguments[3], NamedSharding(mesh, PartitionSpec(over_rows)))
        ]
        step = jax.jit(jax.value_and_grad(partial(loss, partial(splash_attention, interpret=True)), argnums=(0, 1, 2)))
        found = step(*placed)
        program = step.lower(*placed).compile().as_text()
    differences = [
        float(np.abs(np.asarray(a) - np.asarray(b)).max())
        for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    ]
    moves = [name for name in ("all-gather", "all-to-all", "collective-permute") if f"{name}(" in program]
    return {"differences": differences, "moves": moves}


if __name__ == "__main__":
    cases = [compare(rows=8, heads=4, kv_heads=2), compare(rows=3, heads=3, kv_heads=1)]
    sys.stdout.write(json.dumps(cases) + "\n")
