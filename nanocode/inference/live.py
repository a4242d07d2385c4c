"""One conversation whose key-value cache lives across turns.

What a new prompt shares with what the cache holds is kept, however much of the conversation was cut or replaced behind
it; only the rest is computed. Tokens are handed out as chunks end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from nanocode.inference.choosing import choosing
from nanocode.inference.decoding import CHUNK_TOKENS, Cache, begin, extend
from nanocode.inference.engine import Engine, cache_slots
from nanocode.inference.grammar import ToolGrammar
from nanocode.inference.sampling import Sampling

_PIECES = (32, 128)  # tokens that one program adds to the cache
_CHUNK_SECONDS = 0.04  # between one chunk and the next: a stream looks live, and the host is seldom waited for


@dataclass(frozen=True)
class Sampled:
    """A token and its log-probability under the model's own distribution: untempered, nothing truncated, no grammar."""

    id: int
    log_probability: float


class LiveDecoder:
    """Decodes one conversation at a time. Compiles once per cache bucket, and twice more for prompts.

    `clock` (seconds) decides how many tokens a chunk has, which no token depends on.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.perf_counter) -> None:
        self._engine, self._clock = engine, clock
        self._cache: Cache | None = None
        self._held: list[int] = []  # the tokens in the cache's first slots
        self._token_seconds = _CHUNK_SECONDS  # as the last chunk took them
        self._turn = 0
        self.computed_tokens = 0
        """Prompt tokens that had to be computed since this decoder was made; the others were in the cache."""

    def stream(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        grammar: ToolGrammar | None = None,
    ) -> Iterator[Sampled]:
        """The tokens that follow, ``<|assistant_end|>`` included; greedy without `sampling`.

        What `Engine.generate` gives on the stream numbered `len(prompt_ids)`. Closing the iterator early leaves the
        decoder usable. Raises, before the first token, ValueError for an empty prompt or `max_new_tokens` below 1, and
        ContextOverflow when the prompt leaves no room for a token; a reply that reaches the end of the context is cut.
        """
        prompt = list(prompt_ids)
        if max_new_tokens < 1:
            raise ValueError(f"max_new_tokens must be at least 1, not {max_new_tokens}")
        self._engine.check_prompt(prompt)
        return self._stream(prompt, max_new_tokens, sampling or Sampling(), grammar)

    def _stream(
        self, prompt: list[int], max_new_tokens: int, sampling: Sampling, grammar: ToolGrammar | None
    ) -> Iterator[Sampled]:
        self._turn += 1
        turn = self._turn
        self._take_in(prompt)
        how = choosing(sampling, None if grammar is None else grammar.tables)
        length = np.array([len(prompt)], np.int32)
        rows, newest = begin(np.array([prompt], np.int32), length, len(prompt) - 1, sampling.seed, length)
        made = 0
        while made < max_new_tokens and not np.asarray(newest.done)[0]:
            if turn != self._turn:
                raise RuntimeError("this decoder has begun another reply: it holds one conversation at a time")
            steps = min(self._chunk_tokens() if made else 1, max_new_tokens - made)
            cache = self._engine.with_room(self._taken_cache(), len(prompt) + made + steps)
            started, unwritten = self._clock(), int(np.asarray(newest.last)[0])
            cache, newest, chunk = self._engine.decode(cache, newest, rows, how, steps, scored=True)
            count = int(chunk.steps)
            self._token_seconds = (self._clock() - started) / count
            tokens, scores = np.asarray(chunk.tokens)[0, :count], np.asarray(chunk.log_probabilities)[0, :count]
            self._held += [unwritten, *tokens[:-1].tolist()]
            self._cache, made = cache, made + count
            yield from (Sampled(*pair) for pair in zip(tokens.tolist(), scores.tolist(), strict=True))

    def _take_in(self, prompt: list[int]) -> None:
        """Bring the cache to hold the prompt but for its last token, which the first step of decoding adds."""
        if self._cache is None:
            self._held = []
        kept = _common(self._held, prompt[:-1])
        del self._held[kept:]
        pieces = _pieces(len(prompt) - 1 - kept)
        slots = max(len(prompt), kept + sum(pieces))
        if self._cache is None:
            cache = self._engine.empty_cache(cache_slots(slots + CHUNK_TOKENS))
        else:
            cache = self._engine.with_room(self._taken_cache(), slots)
        for piece in pieces:
            start = len(self._held)
            taken = prompt[start : min(start + piece, len(prompt) - 1)]
            ids = np.array([taken + [self._engine.tokenizer.pad] * (piece - len(taken))], np.int32)
            previous = np.int32(prompt[max(start - 1, 0)])
            cache = extend(self._engine.architecture, self._engine.weights, cache, ids, previous, np.int32(start))
            self._held += taken
            self.computed_tokens += len(taken)
        self._cache = cache

    def _taken_cache(self) -> Cache:
        """The cache, which is nobody's until it is put back: an interrupted program has used it up."""
        cache, self._cache = self._cache, None
        if cache is None:
            raise RuntimeError("the decoder was interrupted in the middle of a step: begin another reply")
        return cache

    def _chunk_tokens(self) -> int:
        """As many as a fraction of a second allows. A reply begins with one, which nobody should wait for."""
        return max(1, min(CHUNK_TOKENS, int(_CHUNK_SECONDS / max(self._token_seconds, 1e-9))))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next((at for at, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


def _pieces(tokens: int) -> list[int]:
    """Sizes of `_PIECES` that hold so many tokens: large ones, and one for the remainder."""
    pieces = [_PIECES[-1]] * (tokens // _PIECES[-1])
    rest = tokens % _PIECES[-1]
    return pieces + [next(size for size in _PIECES if size >= rest)] * (rest > 0)
