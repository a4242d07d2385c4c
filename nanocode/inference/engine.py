"""Batched decoding: prompts of like length side by side through one prefill, then chunks of a decode loop.

Each row carries its own length and its own random stream, so what a prompt generates depends on the model, the prompt
and the sampling, never on the rows beside it. The loop runs on the device, a chunk of tokens at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import jax.numpy as jnp
import numpy as np

from nanocode.inference.choosing import Choosing, choosing
from nanocode.inference.decoding import (
    CHUNK_TOKENS,
    Architecture,
    Cache,
    Chunk,
    Newest,
    Rows,
    begin,
    decode,
    grown,
    prefill,
    repeated,
    weights_of,
)
from nanocode.inference.overflow import ContextOverflow
from nanocode.inference.sampling import Sampling
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanocode.inference.grammar import ToolGrammar

_PROMPT_BUCKET = 64
_BATCH_ROWS = 64  # at once: memory stays bounded, and rows of like length share a batch
_AHEAD_TOKENS = 128  # room that a cache is given for what comes, so that it seldom has to grow


@dataclass(frozen=True)
class Scored:
    """A reply and the log-probability of each of its tokens under the model's own distribution: untempered, nothing
    truncated, no grammar.
    """

    ids: list[int]
    log_probabilities: list[float]


class Engine:
    """Generates with one model.

    Compiles once per (architecture, rows rounded to a power of two, prompt bucket, cache bucket, features of sampling):
    engines whose models differ in their weights alone share what is compiled.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.context_tokens = model.shape.tokens
        self.stop = tokenizer.special["<|assistant_end|>"]
        self._cache_rows = model.shape.kv_heads, model.shape.head_width, model.shape.layers, model.dtype
        self.architecture, self.weights = Architecture(model), weights_of(model)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        temperature: float = 0.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        streams: Sequence[int] | None = None,
        grammar: ToolGrammar | None = None,
    ) -> list[list[int]]:
        """The ids that follow each prompt, up to and including ``<|assistant_end|>``; temperature 0 is greedy.

        The numbers mean what they mean in `Sampling`; `streams` names each row's random stream (its index by default);
        `grammar` keeps tool calls well-formed. Raises ContextOverflow when a prompt leaves no room for a single token;
        a reply that reaches the end of the context is cut there.
        """
        sampling = Sampling(temperature, top_k, top_p, min_p, seed)
        replies = self._replies(prompts, max_new_tokens, sampling, streams, grammar, scored=False)
        return [reply.ids for reply in replies]

    def generate_scored(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        streams: Sequence[int] | None = None,
        grammar: ToolGrammar | None = None,
    ) -> list[Scored]:
        """`generate` with the log-probability of each token; greedy without `sampling`."""
        return self._replies(prompts, max_new_tokens, sampling or Sampling(), streams, grammar, scored=True)

    def check_prompt(self, prompt: Sequence[int]) -> None:
        """Raise ValueError for an empty prompt, ContextOverflow for one that leaves no room for a single token."""
        if not len(prompt):
            raise ValueError("a prompt needs at least one token")
        if len(prompt) >= self.context_tokens:
            raise ContextOverflow(
                f"the conversation has {len(prompt)} tokens, the model's context {self.context_tokens}"
            )

    def _replies(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        sampling: Sampling,
        streams: Sequence[int] | None,
        grammar: ToolGrammar | None,
        *,
        scored: bool,
    ) -> list[Scored]:
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        by_length = sorted(range(len(prompts)), key=lambda row: len(prompts[row]))
        for row in by_length[:1] + by_length[-1:]:
            self.check_prompt(prompts[row])
        replies: dict[int, Scored] = {}
        how = choosing(sampling, None if grammar is None else grammar.tables)
        for first in range(0, len(prompts), _BATCH_ROWS):
            chosen = by_length[first : first + _BATCH_ROWS]
            rows = _padded(
                [prompts[row] for row in chosen],
                [row if streams is None else streams[row] for row in chosen],
                self.tokenizer.pad,
                self.context_tokens,
            )
            chunks = self._chunks(*rows, max_new_tokens, how, sampling.seed, scored=scored)
            replies |= zip(chosen, _joined(list(chunks), self.stop, self.tokenizer.pad), strict=False)
        return [replies[row] for row in range(len(prompts))]

    def _chunks(
        self,
        ids: np.ndarray,
        lengths: np.ndarray,
        streams: np.ndarray,
        max_new_tokens: int,
        how: Choosing,
        seed: int,
        *,
        scored: bool,
    ) -> Iterator[Chunk]:
        """What is added to prompts (B, P), chunk by chunk, until every row is done."""
        tokens = ids.shape[1]
        rows, newest = begin(ids, lengths, tokens, seed, streams)
        cache = self._prefilled(ids, lengths, cache_slots(tokens + min(max_new_tokens, _AHEAD_TOKENS)))
        for made in range(0, max_new_tokens, CHUNK_TOKENS):
            steps = min(CHUNK_TOKENS, max_new_tokens - made)
            cache = self.with_room(cache, tokens + made + steps)
            cache, newest, chunk = self.decode(cache, newest, rows, how, steps, scored=scored)
            yield chunk
            if np.asarray(newest.done).all():
                return

    def _prefilled(self, ids: np.ndarray, lengths: np.ndarray, slots: int) -> Cache:
        """The cache of prompts (B, P); many replies to one prompt take the time of one."""
        prompts = ids[lengths > 0]
        if len(ids) == 1 or (prompts != prompts[0]).any():
            return prefill(self.architecture, self.weights, ids, slots=slots)
        return repeated(prefill(self.architecture, self.weights, prompts[:1], slots=slots), rows=len(ids))

    def empty_cache(self, slots: int) -> Cache:
        """Of one conversation."""
        kv_heads, head_width, layers, dtype = self._cache_rows
        keys, values = (tuple(jnp.zeros((kv_heads, slots, head_width), dtype) for _ in range(layers)) for _ in "kv")
        return Cache(keys, values)

    def with_room(self, cache: Cache, slots: int) -> Cache:
        """`cache`, or a larger copy when it has fewer `slots`."""
        return cache if cache.slots >= slots else grown(cache, slots=cache_slots(slots + _AHEAD_TOKENS))

    def decode(
        self, cache: Cache, newest: Newest, rows: Rows, how: Choosing, steps: int, *, scored: bool
    ) -> tuple[Cache, Newest, Chunk]:
        """`nanocode.inference.decoding.decode` with this model. The cache given is gone afterwards."""
        return decode(
            self.architecture,
            self.weights,
            cache,
            newest,
            rows,
            how,
            np.int32(steps),
            stop=self.stop,
            pad=self.tokenizer.pad,
            scored=scored,
        )


def cache_slots(tokens: int) -> int:
    """The cache's size for so many tokens: 64, 96, 128, 192, 256, 384 ..., so that few sizes are compiled."""
    power = max(64, 1 << (tokens - 1).bit_length())
    return power * 3 // 4 if power > 64 and tokens <= power * 3 // 4 else power


def _padded(
    prompts: Sequence[Sequence[int]], streams: Sequence[int], pad: int, context_tokens: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """ids (B, P), lengths (B,) and streams (B,), B and P rounded up; rows of length 0 fill."""
    rows = 1 << (len(prompts) - 1).bit_length()
    longest = max(len(prompt) for prompt in prompts)
    tokens = min(-(-longest // _PROMPT_BUCKET) * _PROMPT_BUCKET, context_tokens)
    ids = np.full((rows, tokens), pad, np.int32)
    lengths, row_streams = np.zeros(rows, np.int32), np.zeros(rows, np.int32)
    for row, prompt in enumerate(prompts):
        ids[row, : len(prompt)], lengths[row], row_streams[row] = prompt, len(prompt), streams[row]
    return ids, lengths, row_streams


def _joined(chunks: Sequence[Chunk], stop: int, pad: int) -> Iterator[Scored]:
    """Each row's tokens over all chunks, without what follows its stop; padding starts where the context ended."""
    tokens = np.concatenate([chunk.tokens[:, : int(chunk.steps)] for chunk in chunks], axis=1)
    scores = np.concatenate(
        [
            np.zeros((len(tokens), int(chunk.steps)))
            if chunk.log_probabilities is None
            else chunk.log_probabilities[:, : int(chunk.steps)]
            for chunk in chunks
        ],
        axis=1,
    )
    for row, row_scores in zip(tokens, scores, strict=True):
        ends = np.flatnonzero((row == stop) | (row == pad))
        length = len(row) if not len(ends) else ends[0] + int(row[ends[0]] == stop)
        yield Scored(row[:length].tolist(), row_scores[:length].tolist())
