"""Batched decoding: one jitted prefill, one jitted decode loop over a key-value cache.

Each row carries its own length and its own random stream, so what a prompt generates depends on the model, the prompt,
the temperature and the seed, never on the rows beside it. The loop runs on the device until every row has stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nanocode.conversation import Message, parse_assistant, render_prompt
from nanocode.inference.overflow import ContextOverflow
from nanocode.model.gpt import GPT
from nanocode.model.layers import Block
from nanocode.tokenizer import Tokenizer

_BUCKET_TOKENS = 64
_BATCH_ROWS = 64  # at once: memory stays bounded, and rows of like length share a batch


class Cache(NamedTuple):
    """Keys and values, one (B, Hkv, S, D) array a layer: the layout in which a decode step is two plain batched
    products.
    """

    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


class Decoding(NamedTuple):
    """The state of the decode loop for B rows with room for N new tokens each."""

    cache: Cache
    last: jax.Array  # (B,) the newest token, not yet in the cache
    before_last: jax.Array  # (B,) its predecessor, which smear needs
    positions: jax.Array  # (B,) position of the newest token
    tokens: jax.Array  # (B, N) generated ids, pad after the stop
    generated: jax.Array  # () tokens generated so far
    done: jax.Array  # (B,) bool


class Engine:
    """Generates with one model.

    Compiles once per (architecture, rows rounded to a power of two, prompt bucket, new tokens): engines whose models
    differ in their weights alone share what is compiled.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.context_tokens = model.shape.tokens
        self._graph, self._state = nnx.split(model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
        streams: Sequence[int] | None = None,
    ) -> list[list[int]]:
        """The ids that follow each prompt, up to and including ``<|assistant_end|>``; temperature 0 is greedy.

        `streams` names each row's random stream (its index by default). Raises ContextOverflow when a prompt leaves no
        room for a single token; a reply that reaches the end of the context is cut there.
        """
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        if not prompts:
            return []
        if not all(prompts):
            raise ValueError("a prompt needs at least one token")
        longest = max(len(prompt) for prompt in prompts)
        if longest >= self.context_tokens:
            raise ContextOverflow(f"the conversation has {longest} tokens, the model's context {self.context_tokens}")
        replies: dict[int, list[int]] = {}
        by_length = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for first in range(0, len(prompts), _BATCH_ROWS):
            chosen = by_length[first : first + _BATCH_ROWS]
            tokens = _generate(
                self._graph,
                self._state,
                *self._padded(
                    [prompts[row] for row in chosen], [row if streams is None else streams[row] for row in chosen]
                ),
                jax.random.key(seed),
                np.float32(temperature or 1.0),
                stop=self.tokenizer.special["<|assistant_end|>"],
                pad=self.tokenizer.pad,
                new_tokens=max_new_tokens,
                greedy=temperature == 0.0,
            )
            replies |= zip(chosen, (_until_stop(row, self.tokenizer) for row in np.asarray(tokens)), strict=False)
        return [replies[row] for row in range(len(prompts))]

    def _padded(
        self, prompts: Sequence[Sequence[int]], streams: Sequence[int]
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """ids (B, P), lengths (B,) and streams (B,), B and P rounded up; rows of length 0 fill."""
        rows = 1 << (len(prompts) - 1).bit_length()
        tokens = min(_bucket(max(len(prompt) for prompt in prompts)), self.context_tokens)
        ids = np.full((rows, tokens), self.tokenizer.pad, np.int32)
        lengths, row_streams = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt)], lengths[row], row_streams[row] = prompt, len(prompt), streams[row]
        return ids, lengths, row_streams


class ModelResponder:
    """One conversation at a time: what the agent's session talks to."""

    def __init__(self, engine: Engine, *, max_new_tokens: int, temperature: float, seed: int) -> None:
        self._engine, self._max_new_tokens = engine, max_new_tokens
        self._temperature, self._seed = temperature, seed

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next assistant message. Raises ContextOverflow, or ConversationError when the output is no message."""
        prompt = render_prompt(conversation, self._engine.tokenizer)
        (ids,) = self._engine.generate(
            [prompt],
            max_new_tokens=self._max_new_tokens,
            temperature=self._temperature,
            seed=self._seed,
            streams=[len(prompt)],
        )
        return parse_assistant(ids, self._engine.tokenizer)


def _bucket(tokens: int) -> int:
    return -(-tokens // _BUCKET_TOKENS) * _BUCKET_TOKENS


def _until_stop(row: np.ndarray, tokenizer: Tokenizer) -> list[int]:
    """A generated row without what follows its stop; padding starts where a row ran out of context."""
    ends = np.flatnonzero((row == tokenizer.special["<|assistant_end|>"]) | (row == tokenizer.pad))
    if not len(ends):
        return row.tolist()
    return row[: ends[0] + (row[ends[0]] != tokenizer.pad)].tolist()


@partial(jax.jit, static_argnames=("graph", "stop", "pad", "new_tokens", "greedy"))
def _generate(
    graph: nnx.GraphDef,
    state: nnx.State,
    ids: jax.Array,
    lengths: jax.Array,
    streams: jax.Array,
    key: jax.Array,
    temperature: jax.Array,
    *,
    stop: int,
    pad: int,
    new_tokens: int,
    greedy: bool,
) -> jax.Array:
    """(B, P) right-padded prompts -> (B, new_tokens) ids. Rows of length 0 are filling and never run."""
    model: GPT = nnx.merge(graph, state)
    row_keys = jax.vmap(lambda stream: jax.random.fold_in(key, stream))(streams)

    def choose(logits: jax.Array, positions: jax.Array) -> jax.Array:
        logits = logits.at[:, pad].set(-jnp.inf)  # padding marks the end of a row; no model may say it
        if greedy:
            return jnp.argmax(logits, axis=-1).astype(jnp.int32)
        keys = jax.vmap(jax.random.fold_in)(row_keys, positions)
        return jax.vmap(jax.random.categorical)(keys, logits / temperature).astype(jnp.int32)

    def advance(decoding: Decoding) -> Decoding:
        logits, cache = _decode_step(model, decoding, lengths, ids.shape[1])
        token = jnp.where(decoding.done, pad, choose(logits, decoding.positions + 1))
        return Decoding(
            cache,
            last=token,
            before_last=decoding.last,
            positions=decoding.positions + 1,
            tokens=decoding.tokens.at[:, decoding.generated].set(token),
            generated=decoding.generated + 1,
            done=decoding.done | (token == stop) | (decoding.positions + 2 >= model.shape.tokens),
        )

    rows = jnp.arange(ids.shape[0])
    first = Decoding(
        _prefill(model, ids, new_tokens),
        last=ids[rows, jnp.maximum(lengths - 1, 0)],
        before_last=ids[rows, jnp.maximum(lengths - 2, 0)],
        positions=jnp.maximum(lengths - 1, 0),
        tokens=jnp.full((ids.shape[0], new_tokens), pad, jnp.int32),
        generated=jnp.zeros((), jnp.int32),
        done=lengths == 0,
    )
    return jax.lax.while_loop(lambda d: (d.generated < new_tokens) & ~jnp.all(d.done), advance, first).tokens


def _prefill(model: GPT, ids: jax.Array, new_tokens: int) -> Cache:
    """Keys and values of the prompts (B, P), in slots 0..P-1, with room for `new_tokens` behind them.

    A row's slots past its own length are of padding; `_decode_step` never looks at them.
    """
    keys, values = [], []
    room = ((0, 0), (0, 0), (0, new_tokens), (0, 0))
    x = model.embed(ids)
    if model.smear is not None:
        x = model.smear.over_rows(x)
    cos, sin = model.rotary(ids.shape[1])

    def run(layer: int, block: Block, x: jax.Array, value_input: jax.Array | None) -> jax.Array:
        del layer
        q, k, v = block.project(x, cos, sin, value_input)
        keys.append(jnp.pad(k.swapaxes(1, 2), room))
        values.append(jnp.pad(v.swapaxes(1, 2), room))
        return block.finish(x, block.attention.attend(q, k, v, None))

    model.through_blocks(x, ids, run)
    return Cache(tuple(keys), tuple(values))


def _decode_step(model: GPT, decoding: Decoding, lengths: jax.Array, prompt_tokens: int) -> tuple[jax.Array, Cache]:
    """Logits (B, V) that follow the newest token, and the cache with that token in it.

    All rows write the same slot, behind the longest prompt, whatever their own position is: one slice, updated in
    place. The prompt's last token is the first to be written there, so the rows' own prompts count up to `lengths - 1`.
    """
    positions = decoding.positions
    x = model.embed(decoding.last[:, None])
    if model.smear is not None:
        previous = jnp.where((positions > 0)[:, None, None], model.embed(decoding.before_last[:, None]), 0)
        x = model.smear(x, previous)
    cos, sin = (table[positions[:, None]] for table in model.rotary(model.shape.tokens))
    slot = prompt_tokens + decoding.generated
    ages = _ages(decoding, lengths, prompt_tokens)
    keys, values = [], []

    def run(layer: int, block: Block, x: jax.Array, value_input: jax.Array | None) -> jax.Array:
        q, k, v = block.project(x, cos, sin, value_input)
        cached_keys, cached_values = decoding.cache.keys[layer], decoding.cache.values[layer]
        keys.append(jax.lax.dynamic_update_slice_in_dim(cached_keys, k.swapaxes(1, 2), slot, axis=2))
        values.append(jax.lax.dynamic_update_slice_in_dim(cached_values, v.swapaxes(1, 2), slot, axis=2))
        window = block.attention.window
        visible = (ages >= 0) & (ages <= (model.shape.tokens if window is None else window))
        return block.finish(x, _attend_one(q[:, 0], keys[-1], values[-1], visible)[:, None])

    x = model.through_blocks(x, decoding.last[:, None], run)
    return model.unembed(x)[:, 0], Cache(tuple(keys), tuple(values))


def _ages(decoding: Decoding, lengths: jax.Array, prompt_tokens: int) -> jax.Array:
    """(B, S): how many positions before the newest token the one in a slot stands; below 0 where there is none yet."""
    slots = jnp.arange(decoding.cache.keys[0].shape[2])[None, :]
    of_prompts = jnp.where(slots < lengths[:, None] - 1, decoding.positions[:, None] - slots, -1)
    return jnp.where(slots >= prompt_tokens, prompt_tokens + decoding.generated - slots, of_prompts)


def _attend_one(q: jax.Array, keys: jax.Array, values: jax.Array, visible: jax.Array) -> jax.Array:
    """One query a row, (B, H, D), over the cache (B, Hkv, S, D) where `visible` (B, S) -> (B, H, D)."""
    rows, heads, width = q.shape
    grouped = (q * width**-0.5).reshape(rows, keys.shape[1], -1, width)
    scores = jnp.einsum("bkgd,bksd->bkgs", grouped, keys).astype(jnp.float32)
    weights = jax.nn.softmax(jnp.where(visible[:, None, None], scores, -jnp.inf), axis=-1).astype(values.dtype)
    return jnp.einsum("bkgs,bksd->bkgd", weights, values).reshape(rows, heads, width)
