"""Preference pairs as batches: chosen sides first, rejected sides after, padded to one of two lengths.

Pairs are drawn in a seeded order without end; a pair waits in the queue of its length until that queue fills a batch.
So batch `i` is a pure function of (seed, i), no batch mixes short and long pairs, and two shapes are compiled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np

from nanocode.conversation import Rendered
from nanocode.training.losses import Batch


@dataclass(frozen=True)
class Pair:
    """Two renderings of one prompt. `id` names the content; the reference log-probs are joined on it, never on
    position.
    """

    id: str
    chosen: Rendered
    rejected: Rendered

    @property
    def tokens(self) -> int:
        """The longer side."""
        return max(len(self.chosen.ids), len(self.rejected.ids))


class LogProbs(NamedTuple):
    """Summed log-probs of a pair's trained tokens under one model, in nats."""

    chosen: float
    rejected: float


class PairBatch(NamedTuple):
    """P pairs: rows 0..P-1 are chosen, P..2P-1 rejected."""

    rows: Batch  # (2P, L+1)
    reference_chosen: jax.Array | np.ndarray  # (P,) float32
    reference_rejected: jax.Array | np.ndarray  # (P,) float32


def row_tokens(pair: Pair, context_tokens: int) -> int:
    """The padded length, targets included: half the context, or all of it."""
    half = context_tokens // 2 + 1
    return half if pair.tokens <= half else context_tokens + 1


def collate(pairs: Sequence[Pair], tokens: int, pad: int) -> Batch:
    """(2P, tokens) arrays of the chosen, then the rejected sides; padding has mask 0 and segment -1."""
    sides = [pair.chosen for pair in pairs] + [pair.rejected for pair in pairs]
    ids = np.full((len(sides), tokens), pad, np.int32)
    mask = np.zeros((len(sides), tokens), np.int8)
    segments = np.full((len(sides), tokens), -1, np.int32)
    for row, side in enumerate(sides):
        here = slice(0, len(side.ids))
        ids[row, here], mask[row, here], segments[row, here] = side.ids, side.mask, 0
    return Batch(ids, mask, segments)


def plan(pairs: Sequence[Pair], context_tokens: int, batch_pairs: int, steps: int, seed: int) -> list[list[int]]:
    """Which pairs (by index) make each of `steps` batches. Raises ValueError when no length fills a batch."""
    by_length: dict[int, list[int]] = {}
    planned: list[list[int]] = []
    for drawn, index in enumerate(_endless(len(pairs), seed)):
        if len(planned) == steps:
            return planned
        if drawn >= (steps + 2) * batch_pairs * max(2, len(pairs)):
            break
        queue = by_length.setdefault(row_tokens(pairs[index], context_tokens), [])
        queue.append(index)
        if len(queue) == batch_pairs:
            planned.append(list(queue))
            queue.clear()
    raise ValueError(f"{len(pairs)} pairs cannot fill batches of {batch_pairs}")


def batch(pairs: Sequence[Pair], reference: Mapping[str, LogProbs], context_tokens: int, pad: int) -> PairBatch:
    """Arrays of the given pairs, the reference joined on the pair's id. Raises KeyError for a pair that has none."""
    scores = [reference[pair.id] for pair in pairs]
    return PairBatch(
        collate(pairs, max(row_tokens(pair, context_tokens) for pair in pairs), pad),
        np.array([score.chosen for score in scores], np.float32),
        np.array([score.rejected for score in scores], np.float32),
    )


def _endless(count: int, seed: int) -> Iterator[int]:
    """Indices below `count`, a new permutation every epoch."""
    epoch = 0
    while count:
        generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, epoch])))
        yield from generator.permutation(count).tolist()
        epoch += 1
