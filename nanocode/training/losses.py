"""Losses: next-token cross-entropy under a mask, and the pairwise preference loss (DPO, with the RPO term).

Definitions follow Rafailov et al. 2023 (DPO) and Pang et al. 2024 (RPO): log-probs are *sums* over trained tokens; the
negative log-likelihood of the chosen reply is its mean. All reductions run in float32.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from nanocode.model.gpt import GPT
from nanocode.training.cross_entropy import Head, token_log_probs, weighted_nll


class Batch(NamedTuple):
    """Rows of T+1 tokens: position t predicts t+1."""

    ids: jax.Array | np.ndarray  # (B, T+1) int32
    mask: jax.Array | np.ndarray  # (B, T+1): 1 where the token is a training target
    segments: jax.Array | np.ndarray  # (B, T+1) int32: documents that cannot see each other


def target_mask(batch: Batch) -> jax.Array:
    """(B, T) float32: which targets count. A document's first token is never predicted from another document."""
    same = batch.segments[:, 1:] == batch.segments[:, :-1]
    return jnp.asarray(batch.mask[:, 1:] * same, jnp.float32)


def language_model_loss(model: GPT, batch: Batch) -> jax.Array:
    """Mean nats over the targets that count; 0 when none does, never NaN (karpathy/nanochat#590)."""
    mask = target_mask(batch)
    return weighted_nll(*_stream_and_targets(model, batch), mask / jnp.maximum(1.0, jnp.sum(mask)))


def sequence_log_probs(model: GPT, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Summed log-prob of each row's trained tokens, (B,) float32, and their count, (B,) float32."""
    mask = target_mask(batch)
    return jnp.sum(token_log_probs(*_stream_and_targets(model, batch)) * mask, axis=1), jnp.sum(mask, axis=1)


def _stream_and_targets(model: GPT, batch: Batch) -> tuple[jax.Array, Head, jax.Array]:
    """(B, T, C) ready for the head, the head, and the (B, T) ids that it should find."""
    ids, segments = jnp.asarray(batch.ids), jnp.asarray(batch.segments)
    return model.final(model.hidden(ids[:, :-1], segments[:, :-1])), head(model), ids[:, 1:]


def head(model: GPT) -> Head:
    """The output table of a model, padding cropped, and its softcap."""
    return Head(model.head[: model.vocab_size], model.config.softcap)


class Preference(NamedTuple):
    """What one batch of P pairs says."""

    loss: jax.Array  # scalar
    margin: jax.Array  # (P,) beta * ((lw - rw) - (ll - rl))
    chosen_shift: jax.Array  # (P,) lw - rw, nats: its fall is likelihood displacement


def preference_loss(
    chosen: jax.Array,
    rejected: jax.Array,
    reference_chosen: jax.typing.ArrayLike,
    reference_rejected: jax.typing.ArrayLike,
    chosen_tokens: jax.Array,
    beta: float,
    nll_weight: float,
) -> Preference:
    """DPO on summed log-probs, each (P,), plus `nll_weight` times the chosen reply's mean negative log-likelihood.

    At policy == reference the DPO part is ln 2 exactly; an identical pair gives ln 2 and no gradient.
    """
    chosen_shift = chosen - reference_chosen
    margin = beta * (chosen_shift - (rejected - reference_rejected))
    nll = -chosen / jnp.maximum(1.0, chosen_tokens)
    loss = jnp.mean(-jax.nn.log_sigmoid(margin) + nll_weight * nll)
    return Preference(loss, margin, chosen_shift)
