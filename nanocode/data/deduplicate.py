"""Duplicates within one source, case and white space aside: exact by hash, near by MinHash LSH over word 5-grams.

The first of a set of duplicates is kept, so the outcome depends only on the order of the documents. Candidates from the
LSH index are checked against the threshold by their estimated Jaccard similarity (standard error about 0.035 at 128
permutations).
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import Literal

import numpy as np
from datasketch import MinHash, MinHashLSH

from nanocode.data.word_runs import run_hashes, word_hashes

SHINGLE_WORDS = 5
PERMUTATIONS = 128
MAX_SHINGLES = 4_000  # of the lowest hashes: similar texts keep the same ones
PERMUTATION_SEED = 1
RECALL_WEIGHTS = (0.1, 0.9)  # (false positives, false negatives): candidates are checked, misses are not

Duplicate = Literal["exact_duplicate", "near_duplicate"]


@dataclass(frozen=True)
class Fingerprint:
    """What a text is recognised by: the sha256 of its words and, unless only exact duplicates count, its MinHash."""

    digest: bytes
    signature: np.ndarray | None  # (PERMUTATIONS,) unsigned integers


def fingerprint(text: str, near: bool) -> Fingerprint:
    """The fingerprint of a text, with its MinHash if `near` duplicates are looked for."""
    words = text.lower().split()
    digest = hashlib.sha256(" ".join(words).encode("utf-8")).digest()
    if not near:
        return Fingerprint(digest, None)
    signature = _min_hash()
    signature.update_batch(shingle_hashes(words))
    return Fingerprint(digest, signature.hashvalues)


class Deduplicator:
    """Remembers every text it let pass. A `threshold` of 1 looks for exact duplicates alone (no index in memory)."""

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._seen: set[bytes] = set()
        self._signatures: list[np.ndarray] = []
        self._index = None
        if threshold < 1:
            self._index = MinHashLSH(threshold=threshold, num_perm=PERMUTATIONS, weights=RECALL_WEIGHTS)

    def check(self, known_by: Fingerprint) -> Duplicate | None:
        """None for a text that is new, and from now on known; else what kind of duplicate it is."""
        if known_by.digest in self._seen:
            return "exact_duplicate"
        if self._index is not None and known_by.signature is not None:
            candidates = self._index.query(_min_hash(known_by.signature))
            if any(self._similarity(key, known_by.signature) >= self._threshold for key in candidates):
                return "near_duplicate"
        self.remember(known_by)
        return None

    def remember(self, known_by: Fingerprint) -> None:
        """Know a text that was let pass before, in another process."""
        if self._index is not None and known_by.signature is not None:
            self._index.insert(len(self._signatures), _min_hash(known_by.signature))
            self._signatures.append(known_by.signature)
        self._seen.add(known_by.digest)

    def _similarity(self, key: int, signature: np.ndarray) -> float:
        return float(np.mean(self._signatures[key] == signature))


def _min_hash(values: np.ndarray | None = None) -> MinHash:
    """A MinHash of nothing, or of these values. Drawing its permutations takes longer than using them."""
    blank: MinHash = _blank().copy()
    if values is not None:
        blank.hashvalues = values
    return blank


@functools.cache
def _blank() -> MinHash:
    return MinHash(num_perm=PERMUTATIONS, seed=PERMUTATION_SEED, scheme="affine32", hashfunc=_identity_hash)


def shingle_hashes(words: list[str]) -> np.ndarray:
    """The distinct 32-bit hashes of all runs of five words (of the whole text when it is shorter), the lowest first."""
    runs = run_hashes(word_hashes(words), min(SHINGLE_WORDS, len(words)))
    return np.unique(runs >> np.uint64(32))[:MAX_SHINGLES]


def _identity_hash(value: int) -> int:
    return value
