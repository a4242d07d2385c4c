"""Learning BPE merges from counted words, by the rule of the ``tokenizers`` library and with its result.

Sennrich et al. 2016 (arXiv 1508.07909): again and again the most frequent pair of neighbouring tokens becomes a token.
Among equally frequent pairs the one of the lower ids wins. Counts are kept up to date word by word, and a heap holds
upper bounds: a pair's count only falls after it was put there, and is put right when it comes to the top.

A word is a string whose characters are token ids: then finding a pair is `str.find` and merging it `str.replace`.
"""

from __future__ import annotations

import gc
import heapq
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

Pair = str  # two characters


def learn_merges(word_counts: Mapping[bytes, int], alphabet: Sequence[int], tokens: int) -> list[tuple[int, int, int]]:
    """Merges (left, right, result) until there are `tokens` tokens, or no pair is left.

    `alphabet` lists the bytes in the order of their ids.
    """
    learner = _Learner(word_counts, alphabet)
    with _without_collector():
        return learner.learn(tokens)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Learning makes a million small lists and no cycle: looking for cycles would take a quarter of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Learner:
    """Words and pair counts as they stand after the merges so far."""

    def __init__(self, word_counts: Mapping[bytes, int], alphabet: Sequence[int]) -> None:
        table = bytes(alphabet.index(byte) for byte in range(256))
        self._words = [word.translate(table).decode("latin1") for word in word_counts]
        self._counts = list(word_counts.values())
        self._spelling = [bytes([byte]) for byte in alphabet]
        self._ids = {spelling: index for index, spelling in enumerate(self._spelling)}
        self._pair_counts: defaultdict[Pair, int] = defaultdict(int)
        self._heap: list[tuple[int, Pair, int, list[int]]] = []
        self._pushed = 0

    def learn(self, tokens: int) -> list[tuple[int, int, int]]:
        self._count_pairs()
        merges = []
        while len(self._spelling) < tokens and self._heap:
            bound, pair, _, where = heapq.heappop(self._heap)
            count = self._pair_counts[pair]
            if count != -bound:
                self._push(pair, where)
                continue
            if count < 1:
                break
            left, right = map(ord, pair)
            result = self._token(self._spelling[left] + self._spelling[right])
            merges.append((left, right, result))
            self._merge(pair, chr(result), where)
        return merges

    def _count_pairs(self) -> None:
        """Every pair of neighbours: how often, and in which words."""
        lengths = np.array([len(word) for word in self._words], dtype=np.int64)
        tokens = np.frombuffer("".join(self._words).encode("utf-32-le"), dtype=np.uint32).astype(np.int64)
        inside = np.ones(max(0, len(tokens) - 1), dtype=bool)
        inside[np.cumsum(lengths)[:-1] - 1] = False  # the last token of a word and the first of the next
        pairs = ((tokens[:-1] << 32) | tokens[1:])[inside]
        indices = np.repeat(np.arange(len(lengths)), lengths)[:-1][inside]
        if not len(pairs):
            return
        order = np.argsort(pairs, kind="stable")
        distinct, first = np.unique(pairs[order], return_index=True)
        indices = indices[order]
        totals = np.add.reduceat(np.array(self._counts, dtype=np.int64)[indices], first)
        ends = [*first[1:].tolist(), len(indices)]
        for pair, total, start, end in zip(distinct.tolist(), totals.tolist(), first.tolist(), ends, strict=True):
            spelled = chr(pair >> 32) + chr(pair & 0xFFFFFFFF)
            self._pair_counts[spelled] = total
            self._push(spelled, indices[start:end].tolist())

    def _push(self, pair: Pair, where: list[int]) -> None:
        self._pushed += 1
        heapq.heappush(self._heap, (-self._pair_counts[pair], pair, self._pushed, where))

    def _token(self, spelling: bytes) -> int:
        """The token of that spelling: another pair may have made it before."""
        found = self._ids.setdefault(spelling, len(self._spelling))
        if found == len(self._spelling):
            self._spelling.append(spelling)
        return found

    def _merge(self, pair: Pair, result: str, where: list[int]) -> None:
        """Replace a pair in the words at `where`, and count its neighbours anew."""
        words, left, right = self._words, pair[0], pair[1]
        before: defaultdict[str, list[int]] = defaultdict(list)  # token before the pair -> words, one entry each time
        after: defaultdict[str, list[int]] = defaultdict(list)
        for index in where:
            word = words[index]
            words[index] = merged = word.replace(pair, result)
            shorter = len(word) - len(merged)
            if shorter == 1:
                at = word.find(pair)
                if at > 0:
                    before[word[at - 1]].append(index)
                if at + 2 < len(word):
                    after[word[at + 2]].append(index)
            elif shorter:
                _neighbours(word.split(pair), left, result, index, before, after)
        made: dict[Pair, list[int]] = {}
        for token, indices in before.items():
            self._move(token + left, token + result, indices, made)
        for token, indices in after.items():
            self._move(right + token, result + token, indices, made)
        for new, indices in made.items():
            if self._pair_counts[new] > 0:
                self._push(new, indices)

    def _move(self, old: Pair, new: Pair, indices: list[int], made: dict[Pair, list[int]]) -> None:
        """One pair of neighbours became another in the words at `indices`."""
        count = sum(map(self._counts.__getitem__, indices))
        self._pair_counts[old] -= count
        self._pair_counts[new] += count
        made.setdefault(new, []).extend(indices)


def _neighbours(
    parts: list[str],
    left: str,
    result: str,
    index: int,
    before: Mapping[str, list[int]],
    after: Mapping[str, list[int]],
) -> None:
    """The tokens around each occurrence in a word that holds a pair more than once; `parts` stand between them."""
    head = parts[0]
    for tail in parts[1:-1]:  # empty where two occurrences touch
        if head:
            before[head[-1]].append(index)
        after[tail[0] if tail else left].append(index)
        head = tail or result
    if head:
        before[head[-1]].append(index)
    if parts[-1]:
        after[parts[-1][0]].append(index)
