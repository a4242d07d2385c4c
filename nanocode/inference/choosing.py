"""From logits to tokens: the grammar's mask, temperature, top-k, top-p, min-p, one draw a row.

A number that changes recompiles nothing; a feature that is switched on or off does. Top-k and top-p ask for a
threshold, not for an order: the largest probability at or above which there is enough. It is found by bisection over
the bits of a float32, which is exact and takes 30 passes where a sort of the vocabulary takes far longer on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nanocode.inference.sampling import Sampling

_BITS_OF_ONE = int(np.float32(1.0).view(np.int32))


class GrammarTables(NamedTuple):
    """The automaton on the device. State 0 is the start of a reply."""

    transitions: jax.Array  # (states, classes) int32: the next state, -1 where the token is not allowed
    classes: jax.Array  # (V,) int32: a token's class


class Choosing(NamedTuple):
    """The numbers of a `Sampling`, None where it is switched off (`temperature` None: greedy), and a grammar."""

    temperature: np.float32 | None
    top_k: np.int32 | None
    top_p: np.float32 | None
    min_p: np.float32 | None
    grammar: GrammarTables | None


class Chosen(NamedTuple):
    """One token a row and what led to it."""

    tokens: jax.Array  # (B,)
    grammar_states: jax.Array  # (B,) after the token
    logits: jax.Array  # (B, V) the model's own

    def log_probabilities(self, tokens: jax.Array) -> jax.Array:
        """(B,) of `tokens` under the model's own distribution: before temperature, truncation and grammar."""
        own = jnp.take_along_axis(self.logits, tokens[:, None], axis=-1)[:, 0]
        return own - jax.nn.logsumexp(self.logits, axis=-1)


def choosing(sampling: Sampling, grammar: GrammarTables | None = None) -> Choosing:
    if sampling.temperature == 0:
        return Choosing(None, None, None, None, grammar)
    return Choosing(
        np.float32(sampling.temperature),
        np.int32(sampling.top_k) if sampling.top_k else None,
        np.float32(sampling.top_p) if sampling.top_p < 1 else None,
        np.float32(sampling.min_p) if sampling.min_p else None,
        grammar,
    )


def choose(
    logits: jax.Array, choosing: Choosing, keys: jax.Array, positions: jax.Array, states: jax.Array, pad: int
) -> Chosen:
    """One token a row from logits (B, V).

    A draw depends on the row's key (B,) and the position (B,) of the token alone. Padding marks the end of a row; no
    model may say it.
    """
    fit = jnp.where(jnp.arange(logits.shape[-1]) == pad, -jnp.inf, logits)
    if choosing.grammar is not None:
        fit = jnp.where(allowed(choosing.grammar, states), fit, -jnp.inf)
    if choosing.temperature is None:
        tokens = _likeliest(fit)
    else:
        draws = jax.vmap(jax.random.fold_in)(keys, positions)
        kept = truncated(fit / choosing.temperature, choosing)
        noise = jax.vmap(lambda key: jax.random.gumbel(key, kept.shape[-1:], kept.dtype))(draws)
        tokens = _likeliest(kept + noise)
    if choosing.grammar is not None:
        states = following(choosing.grammar, states, tokens)
    return Chosen(tokens, states, logits)


def _likeliest(logits: jax.Array) -> jax.Array:
    """The first largest of each row (B, V), as argmax has it: XLA's CPU code for two plain reductions uses vectors, for
    argmax it does not.
    """
    at = jnp.arange(logits.shape[-1], dtype=jnp.int32)
    largest = logits == logits.max(axis=-1, keepdims=True)
    return jnp.where(largest, at, logits.shape[-1] - 1).min(axis=-1)


def truncated(logits: jax.Array, choosing: Choosing) -> jax.Array:
    """Tempered logits (B, V), minus infinity where a switched-on rule of `Sampling` drops a token."""
    if choosing.top_k is None and choosing.top_p is None and choosing.min_p is None:
        return logits
    shares = jax.nn.softmax(logits, axis=-1)
    if choosing.top_k is not None:
        shares = _at_least(shares, lambda kept: (kept > 0).sum(axis=-1), jnp.minimum(choosing.top_k, logits.shape[-1]))
    if choosing.top_p is not None:
        share = choosing.top_p * shares.sum(axis=-1)
        shares = _at_least(shares, lambda kept: kept.sum(axis=-1), share)
    if choosing.min_p is not None:
        shares = jnp.where(shares >= choosing.min_p * shares.max(axis=-1, keepdims=True), shares, 0)
    return jnp.where(shares > 0, logits, -jnp.inf)


def _at_least(shares: jax.Array, measure: Callable[[jax.Array], jax.Array], wanted: jax.Array) -> jax.Array:
    """The `shares` (B, V) from the largest threshold at which those kept measure `wanted`; the rest 0.

    Positive floats sort as their bits do, so that the bisection runs over integers and ends at a float exactly.
    """

    def kept(bits: jax.Array) -> jax.Array:
        return jnp.where(shares >= jax.lax.bitcast_convert_type(bits, jnp.float32)[:, None], shares, 0)

    def halve(_: jax.Array, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bounds  # enough is kept at `low`, too little at `high`
        middle = (low + high) // 2
        enough = measure(kept(middle)) >= wanted
        return jnp.where(enough, middle, low), jnp.where(enough, high, middle)

    rows = shares.shape[:1]
    bounds = jnp.zeros(rows, jnp.int32), jnp.full(rows, _BITS_OF_ONE + 1, jnp.int32)
    return kept(jax.lax.fori_loop(0, _BITS_OF_ONE.bit_length(), halve, bounds)[0])


def allowed(tables: GrammarTables, states: jax.Array) -> jax.Array:
    """(B,) states -> (B, V) bool: the tokens that may come next."""
    return jnp.take(tables.transitions[states] >= 0, tables.classes, axis=1)


def following(tables: GrammarTables, states: jax.Array, tokens: jax.Array) -> jax.Array:
    """(B,) states behind (B,) allowed tokens; a row that is over stays where it is."""
    return jnp.maximum(tables.transitions[states, tables.classes[tokens]], 0)
