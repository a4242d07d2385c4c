"""What rows of conversations and pairs say of the loop that made them, counted for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

LICENCES, SOURCES = "licences", "sources"
ATTEMPTS, SCORES, PRINCIPLES = "accepted at attempt", "scores", "violated principles"


class CritiqueCounts:
    """Attempts, the critic's scores and the principles broken; of a task once, however many rows it gave."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}
        self._tasks: set[str] = set()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count a row; one without critiques says nothing."""
        provenance = row.get("provenance") or {}
        critiques = provenance.get("critiques") or []
        task = str(provenance.get("task", row.get("id")))
        if not critiques or task in self._tasks:
            return
        self._tasks.add(task)
        self._count(ATTEMPTS, str(len(critiques)))
        for critique in critiques:
            self._count(SCORES, "unscored" if critique.get("score") is None else str(critique["score"]))
            for principle in critique.get("violations", ()):
                self._count(PRINCIPLES, str(principle))

    def to_json(self) -> dict[str, dict[str, int]]:
        """Plain JSON values, sorted."""
        return {name: dict(sorted(counter.items())) for name, counter in self.counts.items()}

    def _count(self, what: str, value: str) -> None:
        self.counts.setdefault(what, Counter())[value] += 1


def critique_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """The counts of all rows."""
    counts = CritiqueCounts()
    for row in rows:
        counts.add(row)
    return counts.to_json()


def source_counts(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """By licence, and by set and revision, how many rows others wrote; what was generated here says neither."""
    counts: dict[str, Counter[str]] = {LICENCES: Counter(), SOURCES: Counter()}
    for row in rows:
        provenance = row.get("provenance") or {}
        if "licence" in provenance:
            counts[LICENCES][str(provenance["licence"])] += 1
            counts[SOURCES][source_name(str(provenance.get("set")), provenance.get("revision"))] += 1
    return {name: dict(sorted(counter.items())) for name, counter in counts.items()}


def source_name(name: str, revision: str | None) -> str:
    """A set as reports name it: with its revision, where it has one."""
    return name if revision is None else f"{name}@{revision}"
