"""Attention on GPUs through `jax.nn.dot_product_attention`: cuDNN's flash attention, or XLA's plain one.

Arguments and result as `nanocode.model.attention` has them.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

_MOST_HEAD_WIDTH = 128  # 256 needs a Hopper or later: then ask for it by `model.attention = "cudnn"`


def cudnn_takes(q: jax.Array | jax.ShapeDtypeStruct) -> bool:
    """Whether cuDNN's flash attention takes queries (B, T, H, D) on every GPU that it supports, masked ones too."""
    _, tokens, _, head_width = q.shape
    half = q.dtype in (jnp.bfloat16, jnp.float16)
    return half and head_width % 8 == 0 and head_width <= _MOST_HEAD_WIDTH and tokens % 2 == 0


def cudnn_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None, window: int | None = None
) -> jax.Array:
    """cuDNN's flash attention. Raises RuntimeError or NotImplementedError where it is absent or refuses the shapes."""
    return _attention(q, k, v, segments, window, "cudnn")


def xla_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None, window: int | None = None
) -> jax.Array:
    """All T x T scores at once: any type and shape, on any platform."""
    return _attention(q, k, v, segments, window, "xla")


def _attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array | None,
    window: int | None,
    implementation: Literal["cudnn", "xla"],
) -> jax.Array:
    mask = None if segments is None else segments[:, None, :, None] == segments[:, None, None, :]
    return jax.nn.dot_product_attention(
        q,
        k,
        v,
        mask=mask,
        is_causal=True,
        local_window_size=None if window is None else (window, 0),
        implementation=implementation,
    )
