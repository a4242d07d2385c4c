"""Overlap of documents with evaluation items: runs of 13 normalised words, and how much of an item they cover.

A run of 13 words in common is the usual sign of a leak (Brown et al. 2020, "Language Models are Few-Shot Learners",
appendix C), but on ordinary code most such runs are boilerplate. So what counts is the share of an item's words that
lie in runs which the document has too: an item copied whole is covered to 1, a shared licence header to little.

Only hashes of the items' runs are held, in one sorted array per width; a document is looked up and forgotten. Words are
runs of letters, digits and underscores, case aside.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanocode.data.word_runs import run_hashes, word_hashes

_WORD = re.compile(r"\w+")


@dataclass(frozen=True)
class EvaluationItem:
    """One text that must not be trained on: `name` says where it stands, such as ``humaneval/data.jsonl#3``."""

    name: str
    text: str


@dataclass(frozen=True)
class Overlap:
    """What a document has in common with an item: the share of the item's words, and the first run of them."""

    item: str
    coverage: float
    span: str


def items_digest(items: Sequence[EvaluationItem]) -> str:
    """The sha256 that pins a set: of every item's name and text, in order."""
    digest = hashlib.sha256()
    for item in items:
        for part in (item.name, item.text):
            encoded = part.encode("utf-8", "surrogatepass")
            digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()


class OverlapIndex:
    """The runs of a set of items. `unchecked` names those of fewer than `min_words` words, too short to say anything.

    Raises ValueError when `min_words` exceeds `words`.
    """

    def __init__(self, items: Sequence[EvaluationItem], words: int = 13, min_words: int = 8) -> None:
        if min_words > words:
            raise ValueError(f"min_words ({min_words}) must not exceed words ({words})")
        self._items: list[EvaluationItem] = []
        self.unchecked: list[str] = []
        runs: dict[int, list[tuple[np.ndarray, int]]] = {}
        for item in items:
            hashes = word_hashes(_words(item.text))
            if len(hashes) < min_words:
                self.unchecked.append(item.name)
                continue
            width = min(words, len(hashes))
            runs.setdefault(width, []).append((run_hashes(hashes, width), len(self._items)))
            self._items.append(item)
        self._tables = {width: _table(entries) for width, entries in sorted(runs.items())}

    @property
    def checked(self) -> int:
        """How many items are looked for."""
        return len(self._items)

    def overlaps(self, text: str) -> list[Overlap]:
        """Every item that shares a run with `text`, the most covered first."""
        hashes = word_hashes(_words(text))
        found: list[Overlap] = []
        for width, (keys, owners) in self._tables.items():
            if len(hashes) < width:
                continue
            runs = run_hashes(hashes, width)
            places = np.searchsorted(keys, runs)
            common = np.unique(runs[keys[np.minimum(places, len(keys) - 1)] == runs])
            if len(common):
                touched = np.unique(owners[np.isin(keys, common)])
                found.extend(self._overlap(int(owner), width, common) for owner in touched)
        return sorted(found, key=lambda overlap: (-overlap.coverage, overlap.item))

    def _overlap(self, owner: int, width: int, common: np.ndarray) -> Overlap:
        item = self._items[owner]
        starts = np.flatnonzero(np.isin(run_hashes(word_hashes(_words(item.text)), width), common))
        words = [match.span() for match in _WORD.finditer(item.text)]
        covered = np.zeros(len(words), dtype=bool)
        for start in starts:
            covered[start : start + width] = True
        first = int(starts[0])
        return Overlap(item.name, float(covered.mean()), item.text[words[first][0] : words[first + width - 1][1]])


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text.encode("utf-8", "replace").decode("utf-8"))]


def _table(entries: list[tuple[np.ndarray, int]]) -> tuple[np.ndarray, np.ndarray]:
    """All runs of one width, sorted, each beside the number of its item."""
    keys = np.concatenate([hashes for hashes, _ in entries])
    owners = np.concatenate([np.full(len(hashes), owner) for hashes, owner in entries])
    order = np.argsort(keys, kind="stable")
    return keys[order], owners[order]
