"""How likely a model finds the answers of prompts: on a device in a few fixed shapes, or by any function to logits.

A prompt's figures depend on the model and the prompt alone: rows are as long as their bucket, whichever others share
the batch, and what fills them up comes after everything that counts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from nanocode.evaluation.core.prompts import Encode, Prompt
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer
from nanocode.training.losses import head

_SHORTEST_BUCKET = 64
_BATCH_TOKENS = 8_192
_LOGIT_POSITIONS = 1_024  # whose logits stand at once: 128 MiB for a vocabulary of 32,768


@dataclass(frozen=True)
class Score:
    """Of one answer: the mean log-probability of its tokens in nats, and whether each of them is the likeliest."""

    log_probability: float
    is_greedy: bool


class Scorer(Protocol):
    """Somebody who can be asked the questions of CORE."""

    @property
    def bos(self) -> int:
        """The id that every prompt begins with."""

    @property
    def context_tokens(self) -> int:
        """The longest prompt, in tokens."""

    @property
    def encode(self) -> Encode:
        """From a text to its ids."""

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        """In the order of the prompts."""


class FunctionScorer:
    """Any function from the (T,) ids of a text to its (T, V) logits, summed up in float64."""

    def __init__(
        self, logits: Callable[[np.ndarray], np.ndarray], encode: Encode, bos: int, context_tokens: int
    ) -> None:
        self._logits, self.encode, self.bos, self.context_tokens = logits, encode, bos, context_tokens

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        return [self._score(prompt) for prompt in prompts]

    def _score(self, prompt: Prompt) -> Score:
        logits = np.asarray(self._logits(prompt.ids), np.float64)[prompt.start - 1 : -1]
        answer = prompt.ids[prompt.start :]
        highest = logits.max(axis=1)
        total = highest + np.log(np.exp(logits - highest[:, None]).sum(axis=1))
        chosen = logits[np.arange(len(answer)), answer]
        return Score(float(np.mean(chosen - total)), bool(np.all(logits.argmax(axis=1) == answer)))


class ModelScorer:
    """A trained model. Compiles once for each length of rows: powers of two up to the context."""

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.bos, self.context_tokens, self.encode = tokenizer.bos, model.shape.tokens, tokenizer.encode_array
        self._pad = tokenizer.pad
        self._graph, self._state = nnx.split(model)

    def score(self, prompts: Sequence[Prompt]) -> list[Score]:
        """Raises ValueError for a prompt that is longer than the context."""
        by_bucket: dict[int, list[int]] = {}
        for index, prompt in enumerate(prompts):
            by_bucket.setdefault(self._bucket(len(prompt.ids)), []).append(index)
        scores: dict[int, Score] = {}
        for bucket, indices in sorted(by_bucket.items()):
            rows = max(1, _BATCH_TOKENS // bucket)
            for first in range(0, len(indices), rows):
                chosen = indices[first : first + rows]
                scores |= zip(chosen, self._batch([prompts[index] for index in chosen], rows, bucket), strict=True)
        return [scores[index] for index in range(len(prompts))]

    def _bucket(self, tokens: int) -> int:
        if tokens > self.context_tokens:
            raise ValueError(f"a prompt has {tokens} tokens, and the model's context {self.context_tokens}")
        return min(self.context_tokens, max(_SHORTEST_BUCKET, 1 << (tokens - 1).bit_length()))

    def _batch(self, prompts: Sequence[Prompt], rows: int, bucket: int) -> list[Score]:
        ids = np.full((rows, bucket), self._pad, np.int32)
        for row, prompt in enumerate(prompts):
            ids[row, : len(prompt.ids)] = prompt.ids
        log_probs, greedy = map(np.asarray, _next_tokens(self._graph, self._state, ids))
        scores = []
        for row, prompt in enumerate(prompts):
            answer = slice(prompt.start - 1, len(prompt.ids) - 1)
            scores.append(
                Score(float(np.mean(log_probs[row, answer], dtype=np.float64)), bool(greedy[row, answer].all()))
            )
        return scores


@partial(jax.jit, static_argnames="graph")
def _next_tokens(graph: nnx.GraphDef, state: nnx.State, ids: jax.Array) -> tuple[jax.Array, jax.Array]:
    """(B, T) ids -> (B, T) log-probability of each position's next id, and whether it is the likeliest; the last
    column means nothing.
    """
    model: GPT = nnx.merge(graph, state)
    stream, output = model.final(model.hidden(ids)), head(model)
    table = output.table.astype(stream.dtype)

    def one(position: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """(C,) and the next id: batched by `map`, so that the logits of a whole batch never stand at once."""
        products = jnp.einsum("c,vc->v", position[0], table, preferred_element_type=jnp.float32)
        logits = output.softcap * jnp.tanh(products / output.softcap)
        return logits[position[1]] - jax.nn.logsumexp(logits), jnp.argmax(logits) == position[1]

    positions = stream.reshape(-1, stream.shape[-1]), jnp.roll(ids, -1, axis=1).reshape(-1)
    log_probs, greedy = jax.lax.map(one, positions, batch_size=_LOGIT_POSITIONS)
    return log_probs.reshape(ids.shape), greedy.reshape(ids.shape)
