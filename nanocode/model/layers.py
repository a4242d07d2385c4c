"""What a GPT is built of: norm, rotary positions, attention, MLP, block, smear.

Letters in shapes: B batch, T tokens, C width, H query heads, Hkv key and value heads, D head width.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.attention import causal_attention
from nanocode.model.depth import GATE_CHANNELS, SMEAR_CHANNELS, Shape


def norm(x: jax.Array, epsilon: float) -> jax.Array:
    """RMSNorm over the last axis, no parameters, computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + epsilon)).astype(x.dtype)


def rotary_tables(tokens: int, head_width: int, base: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin, each (tokens, D/2) float32, for the positions from 0.

    Made by NumPy and so constants of the program: XLA would fuse their making into every use, and on a CPU the sines of
    each row and head would cost more than the attention scores.
    """
    frequencies = base ** (-np.arange(0, head_width, 2) / head_width)
    angles = np.arange(tokens)[:, None] * frequencies
    return jnp.asarray(np.cos(angles), jnp.float32), jnp.asarray(np.sin(angles), jnp.float32)


def rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    """Rotate the halves of each head by -theta (RoFormer, nanochat's sign): x (B, T, H, D), tables (T, D/2) or (B, T,
    D/2).
    """
    first, second = jnp.split(x, 2, axis=-1)
    cos, sin = cos[..., None, :].astype(x.dtype), sin[..., None, :].astype(x.dtype)
    return jnp.concatenate([first * cos + second * sin, second * cos - first * sin], axis=-1)


def linear(x: jax.Array, weight: jax.Array) -> jax.Array:
    """(B, T, in) @ (in, out). As one flat product: a gradient that contracts two axes at once is slow on CPUs."""
    return (x.reshape(-1, x.shape[-1]) @ weight.astype(x.dtype)).reshape(*x.shape[:-1], weight.shape[-1])


def uniform(rngs: nnx.Rngs, size: tuple[int, ...], bound: float) -> nnx.Param:
    """A parameter drawn evenly from -`bound` to `bound`."""
    return nnx.Param(nnx.initializers.uniform(2 * bound)(rngs.params(), size) - bound)


class Attention(nnx.Module):
    """Causal self-attention with rotary positions, then QK-norm, then a factor on q and on k."""

    def __init__(self, config: ModelConfig, shape: Shape, layer: int, rngs: nnx.Rngs) -> None:
        self.heads, self.kv_heads, self.head_width = shape.heads, shape.kv_heads, shape.head_width
        self.qk_scale, self.norm_epsilon = config.qk_scale, config.norm_epsilon
        self.window, self.backend = shape.windows[layer], config.attention
        self.query, self.key, self.value = (
            uniform(rngs, (shape.width, width), (3.0 / shape.width) ** 0.5)
            for width in (shape.width, shape.kv_width, shape.kv_width)
        )
        self.output = nnx.Param(jnp.zeros((shape.width, shape.width)))
        if layer in shape.value_layers:
            gate = nnx.initializers.uniform(0.02)(rngs.params(), (GATE_CHANNELS, shape.kv_heads))
            self.value_gate = nnx.Param(gate)

    def project(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, value_embedding: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q (B, T, H, D), k and v (B, T, Hkv, D), ready to attend; `value_embedding` (B, T, Hkv * D) is added to v,
        gated by head.
        """
        q = linear(x, self.query[...]).reshape(*x.shape[:2], self.heads, self.head_width)
        k, v = (
            linear(x, weight[...]).reshape(*x.shape[:2], self.kv_heads, self.head_width)
            for weight in (self.key, self.value)
        )
        q = norm(rotate(q, cos, sin), self.norm_epsilon) * self.qk_scale
        k = norm(rotate(k, cos, sin), self.norm_epsilon) * self.qk_scale
        if value_embedding is not None:
            gate = 3.0 * jax.nn.sigmoid(linear(x[..., :GATE_CHANNELS], self.value_gate[...]))
            v = v + gate[..., None] * value_embedding.reshape(v.shape)
        return q, k, v

    def attend(self, q: jax.Array, k: jax.Array, v: jax.Array, segments: jax.Array | None) -> jax.Array:
        """(B, T, H, D)."""
        return causal_attention(q, k, v, segments, self.window, self.backend)

    def merge(self, attended: jax.Array) -> jax.Array:
        """(B, T, H, D) -> (B, T, C)."""
        return linear(attended.reshape(*attended.shape[:2], -1), self.output[...])


class MLP(nnx.Module):
    """C -> 4C, ReLU squared (So et al., 2021), 4C -> C."""

    def __init__(self, config: ModelConfig, shape: Shape, rngs: nnx.Rngs) -> None:
        self.up = uniform(rngs, (shape.width, shape.mlp_width), config.mlp_init_factor * (3.0 / shape.width) ** 0.5)
        self.down = nnx.Param(jnp.zeros((shape.mlp_width, shape.width)))

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(linear(x, self.up[...]))
        return linear(hidden * hidden, self.down[...])


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, config: ModelConfig, shape: Shape, layer: int, rngs: nnx.Rngs) -> None:
        self.norm_epsilon = config.norm_epsilon
        self.attention = Attention(config, shape, layer, rngs)
        self.mlp = MLP(config, shape, rngs)

    def __call__(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        segments: jax.Array | None,
        value_embedding: jax.Array | None,
    ) -> jax.Array:
        return self.finish(x, self.attention.attend(*self.project(x, cos, sin, value_embedding), segments))

    def project(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, value_embedding: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What goes into attention: q, k, v of the normed stream."""
        return self.attention.project(norm(x, self.norm_epsilon), cos, sin, value_embedding)

    def finish(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """What comes after it: both residual additions."""
        x = x + self.attention.merge(attended)
        return x + self.mlp(norm(x, self.norm_epsilon))


class Smear(nnx.Module):
    """Mix each token's embedding with its predecessor's, by a learnt gate: copying needs one layer less (nanochat)."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.gate = nnx.Param(nnx.initializers.uniform(scale=0.02)(rngs.params(), (SMEAR_CHANNELS, 1)))
        self.strength = nnx.Param(jnp.zeros(()))

    def __call__(self, x: jax.Array, previous: jax.Array) -> jax.Array:
        """x and `previous` (B, T, C): the normed embeddings, and those one position to the left (zeros where there is
        none).
        """
        gate = jax.nn.sigmoid(x[..., :SMEAR_CHANNELS] @ self.gate[...].astype(x.dtype))
        return x + self.strength[...].astype(x.dtype) * gate * previous

    def over_rows(self, x: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """Smear whole rows (B, T, C). A token that opens one of `segments` (B, T) takes nothing from the one before."""
        previous = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
        if segments is not None:
            same = segments == jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
            previous = jnp.where(same[..., None], previous, 0)
        return self(x, previous)
