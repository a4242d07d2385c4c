"""What runs on the device: a prompt into the key-value cache, and a loop that adds tokens to it.

One program serves a batch and a live conversation. All rows of a batch write the same slot at each step, behind the
longest prompt, whatever their own position is: one slice, updated in place. What a row may look at follows from where
its own prompt ends.

Letters in shapes: B rows, P tokens of the longest prompt, S slots of the cache, T tokens added at once, Hkv key and
value heads, G query heads a key head, D head width, V vocabulary.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nanocode.inference.choosing import Choosing, choose
from nanocode.model.gpt import GPT
from nanocode.model.layers import Block

CHUNK_TOKENS = 32
"""The most tokens that one call of `decode` adds to a row."""


class Weights(NamedTuple):
    """The parameters of a model in the type of its activations, so that no use has to cast them."""

    leaves: list[jax.Array]
    head: jax.Array  # (C, V): the output table once more, as the product with a few rows wants it


class Architecture:
    """What of a model is not numbers. Hashed once: flax goes through the whole graph each time."""

    def __init__(self, model: GPT) -> None:
        self._graph, state = nnx.split(model)
        self._structure = jax.tree.structure(state)
        self._hash = hash((self._graph, self._structure))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Architecture) or self._hash != other._hash:
            return False
        return self is other or (self._graph, self._structure) == (other._graph, other._structure)

    def model(self, weights: Weights) -> GPT:
        """The model with these weights, possibly traced."""
        return nnx.merge(self._graph, jax.tree.unflatten(self._structure, weights.leaves))


def weights_of(model: GPT) -> Weights:
    leaves = [leaf.astype(model.dtype) for leaf in jax.tree.leaves(nnx.split(model)[1])]
    return Weights(leaves, jnp.array(model.head.T.astype(model.dtype)))


class Cache(NamedTuple):
    """Keys and values, one (B * Hkv, S, D) array a layer: what is written and what is multiplied are the same array,
    so that no step copies it.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]

    @property
    def slots(self) -> int:
        return int(self.keys[0].shape[1])


class Rows(NamedTuple):
    """What stays as it is while B rows are decoded."""

    lengths: jax.Array  # (B,) tokens of each row's prompt, 0 where a row only fills
    first_slot: jax.Array  # () where the prompts' last tokens are written
    keys: jax.Array  # (B,) random keys


class Newest(NamedTuple):
    """Where B rows stand. The newest token of each is not in the cache yet."""

    last: jax.Array  # (B,) the newest token
    before_last: jax.Array  # (B,) its predecessor, which smear needs
    positions: jax.Array  # (B,) position of the newest token
    slot: jax.Array  # () where it will be written
    done: jax.Array  # (B,) bool
    grammar_states: jax.Array  # (B,) of the tool grammar; 0 without one


class Chunk(NamedTuple):
    """What one call of `decode` has added: N = `CHUNK_TOKENS`, padding after the stop."""

    tokens: jax.Array  # (B, N)
    log_probabilities: jax.Array | None  # (B, N)
    steps: jax.Array  # () how many of the N were decoded


def begin(ids: np.ndarray, lengths: np.ndarray, slot: int, seed: int, streams: np.ndarray) -> tuple[Rows, Newest]:
    """Rows behind their prompts (B, P), right-padded, of `lengths` (B,); those of length 0 fill and never run.

    The prompts' last tokens will be written in `slot`; `streams` (B,) number the rows' random streams.
    """
    rows = np.arange(len(ids))
    row_keys = jax.vmap(lambda stream: jax.random.fold_in(jax.random.key(seed), stream))(jnp.asarray(streams))
    return Rows(jnp.asarray(lengths), jnp.int32(slot), row_keys), Newest(
        last=jnp.asarray(ids[rows, np.maximum(lengths - 1, 0)]),
        before_last=jnp.asarray(ids[rows, np.maximum(lengths - 2, 0)]),
        positions=jnp.asarray(np.maximum(lengths - 1, 0)),
        slot=jnp.int32(slot),
        done=jnp.asarray(lengths == 0),
        grammar_states=jnp.zeros(len(ids), jnp.int32),
    )


@partial(jax.jit, static_argnames=("architecture", "slots"))
def prefill(architecture: Architecture, weights: Weights, ids: jax.Array, *, slots: int) -> Cache:
    """Keys and values of whole prompts (B, P), right-padded, in slots 0..P-1 of `slots`.

    A row's slots past its own length are of padding; `decode` never looks at them.
    """
    model = architecture.model(weights)
    keys, values = [], []
    x = model.embed(ids)
    if model.smear is not None:
        x = model.smear.over_rows(x)
    cos, sin = model.rotary(ids.shape[1])

    def run(layer: int, block: Block, x: jax.Array, value_input: jax.Array | None) -> jax.Array:
        del layer
        q, k, v = block.project(x, cos, sin, value_input)
        keys.append(_roomy(_by_head(k), slots))
        values.append(_roomy(_by_head(v), slots))
        return block.finish(x, block.attention.attend(q, k, v, None))

    model.through_blocks(x, ids, run)
    return Cache(tuple(keys), tuple(values))


@partial(jax.jit, static_argnames=("architecture",), donate_argnames=("cache",))
def extend(
    architecture: Architecture, weights: Weights, cache: Cache, ids: jax.Array, previous: jax.Array, start: jax.Array
) -> Cache:
    """One conversation's cache with the tokens `ids` (1, T) written from slot `start` () on.

    `previous` () is the token before them, for smear. Slots are positions here. Padding at the end of `ids` is written
    too and never looked at, since the next tokens overwrite it; `start` + T must not pass the end of the cache.
    """
    model = architecture.model(weights)
    tokens = ids.shape[1]
    positions = start + jnp.arange(tokens)
    ages = positions[:, None] - jnp.arange(cache.slots)[None, :]
    _, cache = _through(model, ids, previous[None], positions[None], start, ages[None], cache)
    return cache


@partial(jax.jit, static_argnames=("architecture", "stop", "pad", "scored"), donate_argnames=("cache",))
def decode(
    architecture: Architecture,
    weights: Weights,
    cache: Cache,
    newest: Newest,
    rows: Rows,
    choosing: Choosing,
    steps: jax.Array,
    *,
    stop: int,
    pad: int,
    scored: bool,
) -> tuple[Cache, Newest, Chunk]:
    """Up to `steps` () tokens more for each row that is not done; ends early when all are."""
    model = architecture.model(weights)
    shape = (newest.last.shape[0], CHUNK_TOKENS)
    empty = Chunk(
        jnp.full(shape, pad, jnp.int32), jnp.zeros(shape, jnp.float32) if scored else None, jnp.zeros((), jnp.int32)
    )

    def advance(carried: tuple[Cache, Newest, Chunk]) -> tuple[Cache, Newest, Chunk]:
        cache, now, chunk = carried
        x, cache = _through(
            model, now.last[:, None], now.before_last, now.positions[:, None], now.slot, _ages(cache, now, rows), cache
        )
        # Without the barrier XLA's CPU code draws the norm into the product of a single row, and computes both slowly.
        logits = model.logits(jax.lax.optimization_barrier(model.final(x)), weights.head)
        chosen = choose(logits[:, 0], choosing, rows.keys, now.positions + 1, now.grammar_states, pad)
        token = jnp.where(now.done, pad, chosen.tokens)
        ended = now.done | (token == stop) | (now.positions + 2 >= model.shape.tokens)
        after = Newest(token, now.last, now.positions + 1, now.slot + 1, ended, chosen.grammar_states)
        scores = None
        if chunk.log_probabilities is not None:
            scores = _put(chunk.log_probabilities, chosen.log_probabilities(token), chunk.steps)
        return cache, after, Chunk(_put(chunk.tokens, token, chunk.steps), scores, chunk.steps + 1)

    def unfinished(carried: tuple[Cache, Newest, Chunk]) -> jax.Array:
        return (carried[2].steps < steps) & ~jnp.all(carried[1].done)

    return jax.lax.while_loop(unfinished, advance, (cache, newest, empty))


@partial(jax.jit, static_argnames=("slots",))
def grown(cache: Cache, *, slots: int) -> Cache:
    """The same cache with room for more."""
    return jax.tree.map(lambda array: _roomy(array, slots), cache)


@partial(jax.jit, static_argnames=("rows",))
def repeated(cache: Cache, *, rows: int) -> Cache:
    """The cache of one row for many."""
    return jax.tree.map(lambda array: jnp.tile(array, (rows, 1, 1)), cache)


def _through(
    model: GPT,
    ids: jax.Array,
    previous: jax.Array,
    positions: jax.Array,
    slot: jax.Array,
    ages: jax.Array,
    cache: Cache,
) -> tuple[jax.Array, Cache]:
    """The stream behind the last block (B, T, C) of tokens `ids` (B, T), and the cache with them from `slot` on.

    `previous` (B,) stands before them, `positions` (B, T) are theirs, and `ages` (B, T, S) say how far before each of
    them the token in a slot stands, below 0 where there is none to see.
    """
    x = model.embed(ids)
    if model.smear is not None:
        before = jnp.where(positions[:, :1, None] > 0, model.embed(previous[:, None]), 0)
        x = model.smear(x, jnp.concatenate([before, x[:, :-1]], axis=1))
    cos, sin = (table[positions] for table in model.rotary(model.shape.tokens))
    keys, values = [], []

    def run(layer: int, block: Block, x: jax.Array, value_input: jax.Array | None) -> jax.Array:
        q, k, v = block.project(x, cos, sin, value_input)
        keys.append(jax.lax.dynamic_update_slice_in_dim(cache.keys[layer], _by_head(k), slot, axis=1))
        values.append(jax.lax.dynamic_update_slice_in_dim(cache.values[layer], _by_head(v), slot, axis=1))
        window = block.attention.window
        visible = (ages >= 0) if window is None else (ages >= 0) & (ages <= window)
        return block.finish(x, _attend(q, keys[-1], values[-1], visible))

    x = model.through_blocks(x, ids, run)
    return x, Cache(tuple(keys), tuple(values))


def _ages(cache: Cache, now: Newest, rows: Rows) -> jax.Array:
    """(B, 1, S), as `_through` wants them: a row's own prompt counts up to the token before its last, which is the
    first to be written behind all prompts.
    """
    slots = jnp.arange(cache.slots)[None, :]
    of_prompts = jnp.where(slots < rows.lengths[:, None] - 1, now.positions[:, None] - slots, -1)
    return jnp.where(slots >= rows.first_slot, now.slot - slots, of_prompts)[:, None]


def _attend(q: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array) -> jax.Array:
    """Queries (B, T, H, D) over the cache (B * Hkv, S, D) where `visible` (B, T, S) -> (B, T, H, D)."""
    batch, tokens, heads, width = q.shape
    kv_heads = keys.shape[0] // batch
    shape = (batch, tokens, kv_heads, heads // kv_heads, width)
    grouped = (q * width**-0.5).reshape(shape).transpose(0, 2, 3, 1, 4)  # (B, Hkv, G, T, D)
    scores = jnp.einsum("nqd,nsd->nqs", grouped.reshape(keys.shape[0], -1, width), keys).astype(jnp.float32)
    scores = jnp.where(visible[:, None], scores.reshape(batch, heads, tokens, -1), -jnp.inf)
    weights = jnp.exp(scores - scores.max(axis=-1, keepdims=True))
    total = weights.sum(axis=-1, keepdims=True)
    summed = jnp.einsum("nqs,nsd->nqd", weights.astype(values.dtype).reshape(keys.shape[0], -1, keys.shape[1]), values)
    attended = summed.reshape(batch, heads, tokens, width) / total
    return attended.astype(values.dtype).transpose(0, 2, 1, 3)


def _by_head(x: jax.Array) -> jax.Array:
    """(B, T, Hkv, D) -> (B * Hkv, T, D)."""
    return x.swapaxes(1, 2).reshape(-1, x.shape[1], x.shape[3])


def _roomy(array: jax.Array, slots: int) -> jax.Array:
    return jnp.pad(array, ((0, 0), (0, slots - array.shape[1]), (0, 0)))


def _put(rows: jax.Array, column: jax.Array, at: jax.Array) -> jax.Array:
    return jax.lax.dynamic_update_slice_in_dim(rows, column[:, None].astype(rows.dtype), at, axis=1)
