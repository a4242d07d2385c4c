"""Hashes of runs of words: what near duplicates and overlaps with evaluation texts are found by."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import numpy as np

_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


def word_hashes(words: Sequence[str]) -> np.ndarray:
    """The CRC-32 of each word, (N,) uint64."""
    return np.array([zlib.crc32(word.encode("utf-8")) for word in words], dtype=np.uint64)


def run_hashes(hashes: np.ndarray, width: int) -> np.ndarray:
    """A 64-bit hash of every run of `width` consecutive words, (N - width + 1,) uint64."""
    count = len(hashes) - width + 1
    mixed = np.zeros(count, dtype=np.uint64)
    for offset in range(width):
        mixed = (mixed ^ hashes[offset : offset + count]) * _MULTIPLIER
        mixed ^= mixed >> np.uint64(29)
    return mixed
