"""Duplicates within one source, case and white space aside: exact by hash, near by MinHash LSH over word 5-grams.

The first of a set of duplicates is kept, so the outcome depends only on the order of the documents. Candidates from the
LSH index are checked against the threshold by their estimated Jaccard similarity (standard error about 0.035 at 128
permutations).
"""

from __future__ import annotations

import hashlib
import zlib
from typing import Literal

import numpy as np
from datasketch import MinHash, MinHashLSH

SHINGLE_WORDS = 5
PERMUTATIONS = 128
MAX_SHINGLES = 4_000  # of the lowest hashes: similar texts keep the same ones
PERMUTATION_SEED = 1
RECALL_WEIGHTS = (0.1, 0.9)  # (false positives, false negatives): candidates are checked, misses are not

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

Duplicate = Literal["exact_duplicate", "near_duplicate"]


class Deduplicator:
    """Remembers every text it let pass. A `threshold` of 1 looks for exact duplicates alone (no index in memory)."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._seen: set[bytes] = set()
        self._signatures: dict[str, MinHash] = {}
        self._index = None
        if threshold < 1:
            self._index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=RECALL_WEIGHTS)
        self._blank = MinHash(num_perm=PERMUTATIONS, seed=PERMUTATION_SEED, scheme="affine32", hashfunc=_identity_hash)

    def check(self, text: str) -> Duplicate | None:
        """None for a text that is new, and from now on known; else what kind of duplicate it is."""
        words = text.lower().split()
        digest = hashlib.sha256(" ".join(words).encode("utf-8")).digest()
        if digest in self._seen:
            return "exact_duplicate"
        if self._index is not None:
            signature = self._signature(words)
            candidates = self._index.query(signature)
            if any(self._signatures[key].jaccard(signature) >= self._threshold for key in candidates):
                return "near_duplicate"
            key = str(len(self._signatures))
            self._index.insert(key, signature)
            self._signatures[key] = signature
        self._seen.add(digest)
        return None

    def _signature(self, words: list[str]) -> MinHash:
        signature = self._blank.copy()
        signature.update_batch(shingle_hashes(words))
        return signature


def shingle_hashes(words: list[str]) -> np.ndarray:
    """The distinct 32-bit hashes of all runs of five words (of the whole text when it is shorter), the lowest first."""
    hashes = np.array([zlib.crc32(word.encode("utf-8")) for word in words], dtype=np.uint64)
    width = min(SHINGLE_WORDS, len(hashes))
    count = len(hashes) - width + 1
    mixed = np.zeros(count, dtype=np.uint64)
    for offset in range(width):
        mixed = (mixed ^ hashes[offset : offset + count]) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(29)
    return np.unique(mixed >> np.uint64(32))[:MAX_SHINGLES]


def _identity_hash(value: int) -> int:
    return value
