"""Bits per byte on held-out documents: comparable across tokenizers.

total nats / ln 2 / total source bytes; control tokens count in neither sum. Each document is read from its BOS in
windows of the context, the windows of one document following each other without overlap.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer
from nanocode.training.cross_entropy import token_log_probs
from nanocode.training.losses import head

_BATCH_ROWS = 16


def bits_per_byte(model: GPT, tokenizer: Tokenizer, texts: Iterable[str], max_bytes: int) -> float:
    """Bits per byte of the first `max_bytes` bytes of `texts`. Raises ValueError when there are none."""
    nats, total_bytes = 0.0, 0
    graph, state = nnx.split(model)
    documents = [[tokenizer.bos, *ids] for ids in tokenizer.encode_batch(list(_up_to(texts, max_bytes)))]
    for ids in _batches(documents, model.shape.tokens, tokenizer.pad):
        lengths = tokenizer.byte_lengths[ids[:, 1:]]
        nats += float(np.sum(np.asarray(_row_nats(graph, state, ids, lengths > 0), dtype=np.float64)))
        total_bytes += int(lengths.sum())
    return summary(nats, total_bytes)


def summary(nats: float, total_bytes: int) -> float:
    """nats over bytes -> bits per byte. Raises ValueError without bytes."""
    if total_bytes <= 0:
        raise ValueError("bits per byte need at least one byte of held-out text")
    return nats / math.log(2) / total_bytes


@partial(jax.jit, static_argnames="graph")
def _row_nats(graph: nnx.GraphDef, state: nnx.State, ids: jax.Array, counted: jax.Array) -> jax.Array:
    """(B, T + 1) ids, (B, T) whether a target counts -> (B,) nats."""
    model: GPT = nnx.merge(graph, state)
    log_probs = token_log_probs(model.final(model.hidden(ids[:, :-1])), head(model), ids[:, 1:])
    return -jnp.sum(log_probs * counted, axis=1)


def _up_to(texts: Iterable[str], max_bytes: int) -> Iterator[str]:
    left = max_bytes
    for text in texts:
        if left <= 0:
            return
        piece = text.encode()[:left].decode("utf-8", errors="ignore")
        left -= len(text.encode())
        yield piece


def _batches(documents: Sequence[Sequence[int]], context: int, pad: int) -> Iterator[np.ndarray]:
    """(16, context + 1) windows: every token but the BOS is a target exactly once; padding fills the rest."""
    windows = [
        document[start : start + context + 1]
        for document in documents
        for start in range(0, max(1, len(document) - 1), context)
    ]
    for first in range(0, len(windows), _BATCH_ROWS):
        rows = np.full((_BATCH_ROWS, context + 1), pad, np.int32)
        for row, window in enumerate(windows[first : first + _BATCH_ROWS]):
            rows[row, : len(window)] = window
        yield rows
