"""The GPT (Flax NNX): rotary positions, QK-norm, parameter-free RMSNorm, ReLU squared, softcapped logits.

The architecture is nanochat's (karpathy/nanochat at 92d63d4) less what a config switches off. One batch of ids goes
through `GPT.__call__` from top to bottom; inference runs the same blocks over a key-value cache
(`nanocode.inference.engine`).

Letters in shapes: B batch, T tokens, C width, Hkv key and value heads, D head width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.depth import shape
from nanocode.model.layers import Block, Smear, linear, norm, rotary_tables, uniform
from nanocode.model.parameters import as_it_is
from nanocode.model.repeated import repeated

Layer = int | jax.Array
RunBlock = Callable[[Any, Block, jax.Array, jax.Array | None], jax.Array]
"""(layer, block, x, value_input) to the stream behind the block; inside a loop over layers, `layer` is traced."""


class GPT(nnx.Module):
    """Token ids to logits. Parameters are float32; activations have `config.dtype`."""

    def __init__(self, config: ModelConfig, vocab_size: int, rngs: nnx.Rngs) -> None:
        self.config, self.shape, self.vocab_size = config, shape(config, vocab_size), vocab_size
        self.gather_block: Callable[[Any], Any] = as_it_is
        size = (self.shape.vocab, self.shape.width)
        self.embedding = nnx.Param(nnx.initializers.normal(config.embedding_stddev)(rngs.params(), size))
        if not config.tie_embeddings:
            self.unembedding = nnx.Param(nnx.initializers.normal(config.unembedding_stddev)(rngs.params(), size))
        self.smear = Smear(rngs) if config.smear else None
        self.blocks = nnx.List([Block(config, self.shape, layer, rngs) for layer in range(config.depth)])
        if config.value_embeddings:
            tables = (len(self.shape.value_layers), self.shape.vocab, self.shape.kv_width)
            self.value_embeddings = uniform(rngs, tables, (3.0 / self.shape.width) ** 0.5)
        if config.layer_scalars:
            depth_share = jnp.linspace(0.0, 1.0, config.depth)
            self.stream_scale = nnx.Param(1.15 - 0.10 * depth_share)
            self.embedding_scale = nnx.Param(0.20 - 0.15 * depth_share)
        if config.backout:
            self.backout_strength = nnx.Param(jnp.full((), 0.2))

    @property
    def parameter_count(self) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(self, nnx.Param)))

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.dtype(self.config.dtype)

    @property
    def head(self) -> jax.Array:
        """(V, C) float32: the output table, V padded. When tied, the embedding's."""
        return self.embedding[...] if self.config.tie_embeddings else self.unembedding[...]

    def rotary(self, tokens: int) -> tuple[jax.Array, jax.Array]:
        """cos and sin for the positions from 0, (tokens, D/2) each."""
        return rotary_tables(tokens, self.shape.head_width, self.config.rope_base)

    def embed(self, ids: jax.Array) -> jax.Array:
        """(B, T) ids -> (B, T, C) normed embeddings, not yet smeared."""
        return norm(self.embedding[...][ids].astype(self.dtype), self.config.norm_epsilon)

    def enter(self, layer: Layer, x: jax.Array, embedded: jax.Array) -> jax.Array:
        """The stream as it enters a layer: weighed, with some of the embeddings mixed in again."""
        if not self.config.layer_scalars:
            return x
        stream, first = self.stream_scale[...][layer], self.embedding_scale[...][layer]
        return stream.astype(x.dtype) * x + first.astype(x.dtype) * embedded

    def value_inputs(self, ids: jax.Array) -> list[jax.Array | None]:
        """(B, T) ids -> for each layer (B, T, Hkv * D), or None where it has no table. All are read at once, so that
        the gradient is one scatter.
        """
        inputs: list[jax.Array | None] = [None] * self.shape.layers
        if self.shape.value_layers:
            read = self.value_embeddings[...][:, ids].astype(self.dtype)
            for table, layer in enumerate(self.shape.value_layers):
                inputs[layer] = read[table]
        return inputs

    def through_blocks(self, x: jax.Array, ids: jax.Array, run: RunBlock, *, as_loop: bool = False) -> jax.Array:
        """The stream from the embeddings x (B, T, C) to the last block, each block by `run`.

        `as_loop` makes it a loop over equal groups of layers: a program of one group, however deep the model.
        Backout: what the stream was behind the middle layer is taken off in part at the end (nanochat).
        """
        embedded = x

        def group(
            carried: tuple[jax.Array, jax.Array],
            layers: Sequence[Layer],
            blocks: Sequence[Block],
            value_inputs: Sequence[jax.Array | None],
        ) -> tuple[jax.Array, jax.Array]:
            x, middle = carried
            for layer, block, value_input in zip(layers, blocks, value_inputs, strict=True):
                x = run(layer, block, self.enter(layer, x, embedded), value_input)
                middle = self._middle(layer, x, middle)
            return x, middle

        blocks, value_inputs = list(self.blocks), self.value_inputs(ids)
        if as_loop:
            x, middle = repeated(group, (x, x), blocks, value_inputs, self.shape.period, self.gather_block)
        else:
            x, middle = group((x, x), range(self.shape.layers), blocks, value_inputs)
        return x - self.backout_strength[...].astype(x.dtype) * middle if self.config.backout else x

    def _middle(self, layer: Layer, x: jax.Array, middle: jax.Array) -> jax.Array:
        """x where `layer` is the one whose stream is taken off at the end, else what was kept before."""
        if not self.config.backout:
            return middle
        if isinstance(layer, int):
            return x if layer == self.shape.middle else middle
        return jnp.where(layer == self.shape.middle, x, middle)

    def hidden(self, ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """(B, T) ids -> (B, T, C), not yet normed. Where the config masks documents, tokens of different `segments` (B,
        T) cannot see each other; else segments are ignored.
        """
        if not self.config.mask_documents:
            segments = None
        x = self.embed(ids)
        if self.smear is not None:
            x = self.smear.over_rows(x, segments)
        cos, sin = self.rotary(ids.shape[1])

        def run(_: Layer, block: Block, x: jax.Array, value_input: jax.Array | None) -> jax.Array:
            return self._rematerialised(block)(x, cos, sin, segments, value_input)

        return self.through_blocks(x, ids, run, as_loop=self.config.scan_layers)

    def _rematerialised(self, block: Block) -> Callable[..., jax.Array]:
        """`block`, or one whose activations the backward pass computes again as far as the config says."""
        if self.config.remat == "none":
            return block
        keep_products = jax.checkpoint_policies.dots_with_no_batch_dims_saveable
        return jax.checkpoint(block, policy=keep_products if self.config.remat == "matmuls" else None)

    def final(self, x: jax.Array) -> jax.Array:
        """(..., C) stream of `hidden` -> (..., C), ready for the product with `head`."""
        return norm(x, self.config.norm_epsilon)

    def unembed(self, x: jax.Array) -> jax.Array:
        """(..., C) of `hidden` -> (..., vocab_size) float32 logits."""
        return self.logits(self.final(x), self.head.T)

    def logits(self, final: jax.Array, head: jax.Array) -> jax.Array:
        """(..., C) of `final` by the output table (C, V) -> (..., vocab_size) float32: padding cropped, softcap on the
        *output* (not on attention scores).
        """
        logits = linear(final, head)[..., : self.vocab_size].astype(jnp.float32)
        return self.config.softcap * jnp.tanh(logits / self.config.softcap)

    def __call__(self, ids: jax.Array, segments: jax.Array | None = None) -> jax.Array:
        """(B, T) ids -> (B, T, vocab_size) float32 logits."""
        return self.unembed(self.hidden(ids, segments))
