"""The GPT (Flax NNX): rotary positions, QK-norm, parameter-free RMSNorm, ReLU squared, softcapped logits.

The architecture is nanochat's (karpathy/nanochat at 92d63d4) less what a config switches off. One batch of ids goes
through `GPT.__call__` from top to bottom; inference runs the same blocks over a key-value cache
(`nanocode.inference.engine`).

Letters in shapes: B batch, T tokens, S cached tokens, C width, H heads, D head width, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.attention import causal_attention
from nanocode.model.depth import SMEAR_CHANNELS, Shape, shape

_NORM_EPSILON = 1.1920929e-07  # of float32, for every input type, as torch's rms_norm takes it
_GATE_CHANNELS = 12


def norm(x: jax.Array) -> jax.Array:
    """RMSNorm over the last axis, no parameters, computed in float32."""
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + _NORM_EPSILON)).astype(x.dtype)


def rotary_tables(positions: jax.Array, head_width: int, base: float) -> tuple[jax.Array, jax.Array]:
    """cos and sin, each (..., D/2) float32, for integer `positions` of any shape."""
    frequencies = base ** (-jnp.arange(0, head_width, 2, dtype=jnp.float32) / head_width)
    angles = positions[..., None].astype(jnp.float32) * frequencies
    return jnp.cos(angles), jnp.sin(angles)


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


class Attention(nnx.Module):
    """Causal self-attention with rotary positions, then QK-norm, then a factor on q and on k."""

    def __init__(self, shape: Shape, qk_scale: float, value_gated: bool, rngs: nnx.Rngs) -> None:
        self.heads, self.head_width, self.qk_scale = shape.heads, shape.head_width, qk_scale
        bound = (3.0 / shape.width) ** 0.5
        uniform = nnx.initializers.uniform(scale=2 * bound)
        size = (shape.width, shape.width)

        def matrix() -> nnx.Param:
            return nnx.Param(uniform(rngs.params(), size) - bound)

        self.query, self.key, self.value = matrix(), matrix(), matrix()
        self.output = nnx.Param(jnp.zeros(size))
        if value_gated:
            self.value_gate = nnx.Param(nnx.initializers.uniform(0.02)(rngs.params(), (_GATE_CHANNELS, shape.heads)))

    def project(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, value_embedding: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """q, k, v, each (B, T, H, D), ready to attend; `value_embedding` (B, T, C) is added to v, gated by head."""
        heads = (*x.shape[:2], self.heads, self.head_width)
        q, k, v = (linear(x, weight[...]).reshape(heads) for weight in (self.query, self.key, self.value))
        q = norm(rotate(q, cos, sin)) * self.qk_scale
        k = norm(rotate(k, cos, sin)) * self.qk_scale
        if value_embedding is not None:
            gate = 3.0 * jax.nn.sigmoid(linear(x[..., :_GATE_CHANNELS], self.value_gate[...]))
            v = v + gate[..., None] * value_embedding.reshape(heads)
        return q, k, v

    def merge(self, attended: jax.Array) -> jax.Array:
        """(B, T, H, D) -> (B, T, C)."""
        return linear(attended.reshape(*attended.shape[:2], -1), self.output[...])


class MLP(nnx.Module):
    """C -> 4C, ReLU squared (So et al., 2021), 4C -> C."""

    def __init__(self, shape: Shape, rngs: nnx.Rngs) -> None:
        bound = 0.4 * (3.0 / shape.width) ** 0.5
        uniform = nnx.initializers.uniform(scale=2 * bound)
        self.up = nnx.Param(uniform(rngs.params(), (shape.width, shape.mlp_width)) - bound)
        self.down = nnx.Param(jnp.zeros((shape.mlp_width, shape.width)))

    def __call__(self, x: jax.Array) -> jax.Array:
        hidden = jax.nn.relu(linear(x, self.up[...]))
        return linear(hidden * hidden, self.down[...])


class Block(nnx.Module):
    """x + attention(norm(x)), then x + mlp(norm(x))."""

    def __init__(self, shape: Shape, qk_scale: float, value_gated: bool, rngs: nnx.Rngs) -> None:
        self.attention = Attention(shape, qk_scale, value_gated, rngs)
        self.mlp = MLP(shape, rngs)

    def __call__(
        self,
        x: jax.Array,
        cos: jax.Array,
        sin: jax.Array,
        segments: jax.Array | None,
        value_embedding: jax.Array | None,
    ) -> jax.Array:
        return self.finish(x, causal_attention(*self.project(x, cos, sin, value_embedding), segments))

    def project(
        self, x: jax.Array, cos: jax.Array, sin: jax.Array, value_embedding: jax.Array | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """What goes into attention: q, k, v of the normed stream."""
        return self.attention.project(norm(x), cos, sin, value_embedding)

    def finish(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """What comes after it: both residual additions."""
        x = x + self.attention.merge(attended)
        return x + self.mlp(norm(x))


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


class GPT(nnx.Module):
    """Token ids to logits. Parameters are float32; activations have `config.dtype`."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs) -> None:
        self.config, self.shape, self.vocab_size = config, shape(config, vocab_size), vocab_size
        size = (self.shape.vocab, self.shape.width)
        self.embedding = nnx.Param(
            nnx.initializers.normal(_EMBEDDING_STDDEV[config.tie_embeddings])(rngs.params(), size)
        )
        if not config.tie_embeddings:
            self.unembedding = nnx.Param(nnx.initializers.normal(0.001)(rngs.params(), size))
        self.smear = Smear(rngs) if config.smear else None
        gated = [self._has_value_embedding(layer) for layer in range(config.depth)]
        self.blocks = nnx.List([Block(self.shape, config.qk_scale, gate, rngs) for gate in gated])
        if config.value_embeddings:
            bound = (3.0 / self.shape.width) ** 0.5
            tables = nnx.initializers.uniform(2 * bound)(rngs.params(), (sum(gated), *size))
            self.value_embeddings = nnx.Param(tables - bound)
        if config.layer_scalars:
            depth_share = jnp.linspace(0.0, 1.0, config.depth)
            self.stream_scale = nnx.Param(1.15 - 0.10 * depth_share)
            self.embedding_scale = nnx.Param(0.20 - 0.15 * depth_share)

    def _has_value_embedding(self, layer: int) -> bool:
        """Every second layer, the last one included (nanochat)."""
        return self.config.value_embeddings and layer % 2 == (self.config.depth - 1) % 2

    def value_embedding(self, layer: int, ids: jax.Array) -> jax.Array | None:
        """(B, T) ids -> (B, T, C) for a layer that has a table, else None."""
        if not self._has_value_embedding(layer):
            return None
        return self.value_embeddings[...][layer // 2].astype(self.dtype)[ids]

    def enter(self, layer: int, x: jax.Array, embedded: jax.Array) -> jax.Array:
        """The stream as it enters a layer: weighed, with some of the embeddings mixed in again."""
        if not self.config.layer_scalars:
            return x
        stream, first = self.stream_scale[...][layer], self.embedding_scale[...][layer]
        return stream.astype(x.dtype) * x + first.astype(x.dtype) * embedded

    @property
    def parameter_count(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self, nnx.Param)))

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.config.dtype)

    def embed(self, ids: jax.Array) -> jax.Array:
        """(B, T) ids -> (B, T, C) normed embeddings, not yet smeared."""
        return norm(self.embedding[...].astype(self.dtype)[ids])

    @property
    def head(self) -> jax.Array:
        """(V, C) float32: the output table, V padded. When tied, the embedding's."""
        return self.embedding[...] if self.config.tie_embeddings else self.unembedding[...]

    def final(self, x: jax.Array) -> jax.Array:
        """(..., C) stream of `hidden` -> (..., C), ready for the product with `head`."""
        return norm(x)

    def unembed(self, x: jax.Array) -> jax.Array:
        """(..., C) -> (..., vocab_size) float32 logits: padding cropped, softcap on the *output* (not on attention
        scores).
        """
        logits = linear(self.final(x), self.head.T)[..., : self.vocab_size].astype(jnp.float32)
        return self.config.softcap * jnp.tanh(logits / self.config.softcap)

    def hidden(self, ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """(B, T) ids -> (B, T, C). Tokens of different `segments` (B, T) cannot see each other."""
        x = self.embed(ids)
        if self.smear is not None:
            previous = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
            if segments is not None:
                same = segments == jnp.pad(segments, ((0, 0), (1, 0)), constant_values=-1)[:, :-1]
                previous = jnp.where(same[..., None], previous, 0)
            x = self.smear(x, previous)
        cos, sin = rotary_tables(jnp.arange(ids.shape[1]), self.shape.head_width, self.config.rope_base)
        embedded = x
        for layer, block in enumerate(self.blocks):
            x = block(self.enter(layer, x, embedded), cos, sin, segments, self.value_embedding(layer, ids))
        return x

    def __call__(self, ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """(B, T) ids -> (B, T, vocab_size) float32 logits."""
        return self.unembed(self.hidden(ids, segments))


# A tied table is the output matrix too: it starts small so that the first loss is near ln V, and is normed on the way
# in.
_EMBEDDING_STDDEV = {True: 0.02, False: 0.8}
