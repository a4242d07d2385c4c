"""Causal attention for training and prefill: one signature, the implementation chosen by platform and shape.

All take q, k, v (B, T, H, D), already normed and rotated, and optional `segments` (B, T): a query sees the keys at or
before its own position that share its segment. Softmax scale 1/sqrt(D), accumulated in float32.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_QUERY_BLOCK = 64


def causal_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None) -> jax.Array:
    """(B, T, H, D) -> (B, T, H, D)."""
    return blockwise_attention(q, k, v, segments)


def blockwise_attention(q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None) -> jax.Array:
    """Query blocks over only the keys at or before them: the upper triangle is never computed."""
    tokens, scale = q.shape[1], q.shape[-1] ** -0.5
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q * scale, k, v))  # (B, H, T, D)
    out = []
    for start in range(0, tokens, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, tokens)
        visible = jnp.arange(start, stop)[:, None] >= jnp.arange(stop)[None, :]
        if segments is not None:
            visible = visible & (segments[:, None, start:stop, None] == segments[:, None, None, :stop])
        scores = jnp.einsum("bhqd,bhkd->bhqk", q[:, :, start:stop], k[:, :, :stop]).astype(jnp.float32)
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
        out.append(jnp.einsum("bhqk,bhkd->bhqd", weights, v[:, :, :stop]))
    return jnp.concatenate(out, axis=2).transpose(0, 2, 1, 3)
