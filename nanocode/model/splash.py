"""Attention on TPUs: the splash kernel (Pallas), under `shard_map` where a mesh is set.

Arguments and result as `nanocode.model.attention` has them. Splash skips whole blocks that a mask hides, and takes
segments without a T x T mask.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.pallas.ops.tpu.splash_attention import (
    BlockSizes,
    CausalMask,
    LocalMask,
    MultiHeadMask,
    SegmentIds,
    make_splash_mha,
    splash_attention_kernel,
)
from jax.sharding import AxisType, PartitionSpec

_LANES = 128  # of a TPU register: lengths of sequences and heads are padded to multiples
_ROW_AXES, _HEAD_AXIS = ("data", "fsdp"), "tensor"


def splash_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array | None = None,
    window: int | None = None,
    *,
    interpret: bool = False,
) -> jax.Array:
    """The splash kernel on this device's rows and heads. `interpret` runs it without a TPU, slowly, for tests."""
    attend = functools.partial(_on_one_device, window=window, interpret=interpret)
    mesh = jax.sharding.get_abstract_mesh()
    free = {
        name: size
        for name, size, kind in zip(mesh.axis_names, mesh.axis_sizes, mesh.axis_types, strict=True)
        if kind != AxisType.Manual and size > 1
    }
    rows, heads = _split(free, q.shape[0], k.shape[2])
    if not free:
        return attend(q, k, v, segments)
    projected = PartitionSpec(rows, None, heads, None)
    return jax.shard_map(
        attend,
        in_specs=(projected, projected, projected, None if segments is None else PartitionSpec(rows, None)),
        out_specs=projected,
        check_vma=False,  # the kernel does not say how its outputs vary
    )(q, k, v, segments)


def _split(free: dict[str, int], rows: int, kv_heads: int) -> tuple[tuple[str, ...] | None, str | None]:
    """The mesh axes that split rows and heads. What does not divide is computed whole on every device."""
    row_axes: tuple[str, ...] = ()
    for axis in _ROW_AXES:
        if axis in free and rows % free[axis] == 0:
            row_axes, rows = (*row_axes, axis), rows // free[axis]
    heads = _HEAD_AXIS if _HEAD_AXIS in free and kv_heads % free[_HEAD_AXIS] == 0 else None
    return row_axes or None, heads


def _on_one_device(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None, *, window: int | None, interpret: bool
) -> jax.Array:
    tokens, heads, head_width = q.shape[1:]
    padded = -(-tokens // _LANES) * _LANES
    fill = ((0, 0), (0, padded - tokens), (0, 0), (0, -head_width % _LANES))
    # The kernel applies no scale. Padding lies behind every query, and adds zeros to scores and values.
    q, k, v = (jnp.pad(x, fill).swapaxes(1, 2) for x in (q * head_width**-0.5, k, v))
    kernel = _kernel(heads, padded, window, interpret)
    ids = None
    if segments is not None:
        ids = jnp.pad(segments, ((0, 0), (0, padded - tokens)), constant_values=-1).astype(jnp.int32)

    def attend(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array | None) -> jax.Array:
        return kernel(q, k, v, None if ids is None else SegmentIds(ids, ids))  # type: ignore[return-value]

    return jax.vmap(attend)(q, k, v, ids).swapaxes(1, 2)[:, :tokens, :, :head_width]


@functools.lru_cache(maxsize=32)
def _kernel(
    heads: int, tokens: int, window: int | None, interpret: bool
) -> splash_attention_kernel.SplashAttentionKernel:
    square = (tokens, tokens)
    mask = CausalMask(square) if window is None else LocalMask(square, (window, 0), 0)
    make = functools.partial(make_splash_mha, head_shards=1, q_seq_shards=1, interpret=interpret)
    # A kernel holds arrays. In this thread they would belong to the trace, and to a mesh that may be of a machine that
    # is not here; another thread has neither.
    with ThreadPoolExecutor(1) as apart:
        kernel = apart.submit(make, MultiHeadMask([mask] * heads), block_sizes=_blocks(tokens)).result()
    return jax.tree.map(np.asarray, kernel)


def _blocks(tokens: int) -> BlockSizes:
    """The blocks of queries and of keys that salmanmohammadi/nanocode publishes for v6e, halved until they divide the
    sequence. Keys are fetched in the blocks they are computed in: larger ones take several times as long to compile.
    """
    published = {4_096: (1_024, 128), 2_048: (512, 256), 1_024: (256, 256), 0: (128, 128)}
    of_queries, of_keys = next(blocks for length, blocks in published.items() if tokens >= length)
    while tokens % of_queries:
        of_queries //= 2
    while tokens % of_keys:
        of_keys //= 2
    return BlockSizes(
        block_q=of_queries,
        block_kv=of_keys,
        block_q_dkv=of_queries,
        block_kv_dkv=of_keys,
        block_q_dq=of_queries,
        block_kv_dq=of_keys,
    )
