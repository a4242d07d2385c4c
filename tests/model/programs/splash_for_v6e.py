"""Compile attention and its gradients for eight v6e chips, by `causal_attention`'s own choice; prints how many Pallas
kernels stand in each program.
"""

from __future__ import annotations

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nanocode.model.attention import causal_attention


def kernels(mesh: Mesh, tokens: int, heads: int, kv_heads: int, width: int, window: int | None) -> int:
    def loss(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array) -> jax.Array:
        return jnp.sum(causal_attention(q, k, v, segments, window).astype(jnp.float32) ** 2)

    rows = ("data", "fsdp")
    split = NamedSharding(mesh, PartitionSpec(rows, None, "tensor"))
    shapes = [
        jax.ShapeDtypeStruct((8, tokens, count, width), jnp.bfloat16, sharding=split)
        for count in (heads, kv_heads, kv_heads)
    ]
    segments = jax.ShapeDtypeStruct((8, tokens), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec(rows)))
    with jax.set_mesh(mesh):
        compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(*shapes, segments).compile()
    return compiled.as_text().count('custom_call_target="tpu_custom_call"')


if __name__ == "__main__":
    chips = topologies.get_topology_desc(platform="tpu", topology_name="v6e:2x4").devices
    mesh = Mesh(np.array(chips).reshape(1, 4, 2), ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    cases = [
        kernels(mesh, tokens=2_048, heads=12, kv_heads=12, width=128, window=512),
        kernels(mesh, tokens=4_096, heads=8, kv_heads=4, width=256, window=None),
        kernels(mesh, tokens=1_600, heads=4, kv_heads=2, width=64, window=None),
    ]
    sys.stdout.write(json.dumps(cases) + "\n")
