"""Causal attention for training and prefill: one signature, the implementation chosen by platform, type and shape.

All take q (B, T, H, D), already normed and rotated, k and v (B, T, Hkv, D) with Hkv dividing H (query head h reads key
head h // (H / Hkv)), optional `segments` (B, T) and an optional `window`: a query sees itself and the keys before it
that share its segment and lie at most `window` positions back. Softmax scale 1/sqrt(D), accumulated in float32.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from nanocode.model.cudnn import cudnn_attention, cudnn_takes, xla_attention

Backend = Literal["auto", "splash", "cudnn", "xla", "blockwise"]

_QUERY_BLOCK = 64


def causal_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    segments: jax.Array | None = None,
    window: int | None = None,
    backend: Backend = "auto",
) -> jax.Array:
    """(B, T, H, D) -> (B, T, H, D). "auto" asks `choose_backend`."""
    if window is not None and window >= q.shape[1] - 1:
        window = None
    chosen = choose_backend(target_platform(), q) if backend == "auto" else backend
    return _BACKENDS[chosen](q, k, v, segments, window)


def choose_backend(platform: str, q: jax.Array | jax.ShapeDtypeStruct) -> Backend:
    """The fastest path that takes these queries (B, T, H, D) on a platform by JAX's name."""
    if platform == "tpu":
        return "splash"
    if platform in ("gpu", "cuda"):
        return "cudnn" if cudnn_takes(q) else "xla"
    return "blockwise"


def target_platform() -> str:
    """Where the program being traced will run: the mesh decides, which may be of a machine that is not here."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    return str(device.platform) if device is not None else jax.default_backend()


def blockwise_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None, window: int | None = None
) -> jax.Array:
    """Query blocks over only the keys they can see: neither the upper triangle nor what lies left of the window is
    computed.
    """
    tokens, scale = q.shape[1], q.shape[-1] ** -0.5
    if k.shape[2] != q.shape[2]:
        k, v = (jnp.repeat(x, q.shape[2] // x.shape[2], axis=2) for x in (k, v))
    q, k, v = (x.transpose(0, 2, 1, 3) for x in (q * scale, k, v))  # (B, H, T, D)
    out = []
    for start in range(0, tokens, _QUERY_BLOCK):
        stop = min(start + _QUERY_BLOCK, tokens)
        first = 0 if window is None else max(0, start - window)
        queries, keys = jnp.arange(start, stop)[:, None], jnp.arange(first, stop)[None, :]
        visible = queries >= keys
        if window is not None:
            visible = visible & (queries - keys <= window)
        if segments is not None:
            visible = visible & (segments[:, None, start:stop, None] == segments[:, None, None, first:stop])
        scores = jnp.einsum("bhqd,bhkd->bhqk", q[:, :, start:stop], k[:, :, first:stop]).astype(jnp.float32)
        weights = jax.nn.softmax(jnp.where(visible, scores, -jnp.inf), axis=-1).astype(v.dtype)
        out.append(jnp.einsum("bhqk,bhkd->bhqd", weights, v[:, :, first:stop]))
    return jnp.concatenate(out, axis=2).transpose(0, 2, 1, 3)


def splash_attention(
    q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None = None, window: int | None = None
) -> jax.Array:
    """`nanocode.model.splash`, imported where it runs: Pallas takes a tenth of a second that only TPUs need."""
    from nanocode.model import splash

    return splash.splash_attention(q, k, v, segments, window)


_BACKENDS = {
    "splash": splash_attention,
    "cudnn": cudnn_attention,
    "xla": xla_attention,
    "blockwise": blockwise_attention,
}
