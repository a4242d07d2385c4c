"""What became of the documents of a source, counted as they pass: the body of its report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from nanocode.data.judge import Judged


@dataclass
class ItemOverlap:
    """What the corpus shares with one evaluation item: the documents that share anything, and the closest of them."""

    documents: int = 0
    coverage: float = 0.0
    origin: str = ""
    span: str = ""


@dataclass
class Tally:
    """Counts so far. `read_sha256` chains the hashes of all contents in the order they were read."""

    read_documents: int = 0
    read_bytes: int = 0
    read_sha256: str = ""
    skipped: Counter[str] = field(default_factory=Counter)
    kept_documents: int = 0
    kept_bytes: int = 0
    licences: Counter[str] = field(default_factory=Counter)  # of kept documents
    filter_documents: Counter[str] = field(default_factory=Counter)  # by rule
    filter_matches: Counter[str] = field(default_factory=Counter)
    items: dict[str, ItemOverlap] = field(default_factory=dict)

    def add(self, judged: Judged, duplicate: str | None) -> bool:
        """Count one document; whether it is kept."""
        self.read_documents += 1
        self.read_bytes += judged.read_bytes
        self.read_sha256 = hashlib.sha256(self.read_sha256.encode() + judged.sha256).hexdigest()
        self.filter_documents.update(judged.found.keys())
        self.filter_matches.update(judged.found)
        for overlap in judged.overlaps:
            item = self.items.setdefault(overlap.item, ItemOverlap())
            item.documents += 1
            if overlap.coverage > item.coverage:
                item.coverage, item.origin, item.span = overlap.coverage, judged.origin, overlap.span
        reason = judged.reason or duplicate
        if judged.document is None or reason is not None:
            self.skipped[str(reason)] += 1
            return False
        self.kept_documents += 1
        self.kept_bytes += len(judged.document.text.encode("utf-8"))
        self.licences[judged.document.licence] += 1
        return True

    def line(self, source: str) -> str:
        """The counts for a person."""
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items())) or "none"
        found = ", ".join(f"{count:,} {rule}" for rule, count in sorted(self.filter_matches.items()))
        return (
            f"{source}: read {self.read_documents:,} documents ({self.read_bytes:,} bytes), "
            f"kept {self.kept_documents:,} ({self.kept_bytes:,} bytes), skipped: {skipped}"
            + (f"; filters found: {found}" if found else "")
        )

    def summary(self) -> dict[str, Any]:
        """The counts as plain data for the report."""
        return {
            "read": {"documents": self.read_documents, "bytes": self.read_bytes, "sha256": self.read_sha256},
            "kept": {"documents": self.kept_documents, "bytes": self.kept_bytes},
            "skipped": dict(sorted(self.skipped.items())),
            "licences": dict(sorted(self.licences.items())),
            "filters": {
                rule: {"documents": documents, "matches": self.filter_matches[rule]}
                for rule, documents in sorted(self.filter_documents.items())
            },
        }

    def to_json(self) -> dict[str, Any]:
        """Everything as plain data."""
        values = {name: dict(value) if isinstance(value, Counter) else value for name, value in vars(self).items()}
        return values | {"items": {name: asdict(item) for name, item in self.items.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Tally:
        """The inverse of `to_json`."""
        items = {name: ItemOverlap(**item) for name, item in data["items"].items()}
        counters = ("skipped", "licences", "filter_documents", "filter_matches")
        return cls(**{**data, "items": items, **{name: Counter(data[name]) for name in counters}})
