"""Figures of a file of conversations or pairs: counted from its rows, and from the report beside it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nanocode.cli.data_files import conversation_of, sides_of
from nanocode.constitution.summary import CritiqueCounts, source_counts
from nanocode.conversation import Message, render
from nanocode.data.deduplicate import Deduplicator, fingerprint
from nanocode.tasks.converters.gates import words_of
from nanocode.tokenizer import Tokenizer

NEAR_THRESHOLD = 0.9
_QUANTILES = (("min", 0.0), ("median", 0.5), ("p90", 0.9), ("max", 1.0))
# Tables of counts that stages write in their reports.
_REPORTED = ("dropped", "gate", "gates")


@dataclass
class Figures:
    """What is counted, row by row. `size` measures a conversation in `unit`; `near` looks for near duplicates too."""

    unit: str
    size: Callable[[Sequence[Message]], int]
    near: bool = False
    rows: int = 0
    counts: dict[str, Counter[str]] = field(default_factory=dict)
    lengths: dict[str, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._deduplicator = Deduplicator(NEAR_THRESHOLD if self.near else 1.0)
        self._critiques = CritiqueCounts()

    def add(self, row: Mapping[str, Any]) -> None:
        """Count one row. Raises DataFileError for messages that are none."""
        self.rows += 1
        for name in ("family", "variant", "register"):
            if row.get(name) is not None:
                self._count(name, str(row[name]))
        for side, messages in sides_of(row).items():
            conversation = conversation_of(row, messages)
            self._measure(f"{side} {self.unit}".strip(), self.size(conversation))
            self._measure(f"{side} turns".strip(), len(conversation))
            if side != "rejected":  # whose calls are those of the chosen side
                self._add_words(conversation)
        self._critiques.add(row)
        for what, found in source_counts([row]).items():
            for name in found:
                self._count(what, name)

    def to_json(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """Plain JSON values; `report` is what the stage that wrote the file counted."""
        lengths = {
            name: {title: _quantile(values, share) for title, share in _QUANTILES} | {"total": sum(values)}
            for name, values in self.lengths.items()
        }
        counts = {name: dict(sorted(counter.items())) for name, counter in self.counts.items()}
        reported = {name: report[name] for name in _REPORTED if isinstance(report.get(name), dict)}
        return {
            "rows": self.rows,
            "lengths": lengths,
            "counts": counts | self._critiques.to_json(),
            "report": reported,
        }

    def _add_words(self, conversation: Sequence[Message]) -> None:
        for message in conversation:
            if message.tool_call is not None:
                self._count("tools", message.tool_call.name)
        kind = self._deduplicator.check(fingerprint(words_of(conversation), self.near))
        if kind is not None:
            self._count("duplicates", kind)

    def _count(self, what: str, value: str) -> None:
        self.counts.setdefault(what, Counter())[value] += 1

    def _measure(self, what: str, value: int) -> None:
        self.lengths.setdefault(what, []).append(value)


def figures_of(rows: Iterable[Mapping[str, Any]], tokenizer: Tokenizer | None, near: bool) -> Figures:
    """The figures of all rows: lengths in tokens, or without a tokenizer in bytes of what is said and written."""
    if tokenizer is None:
        figures = Figures("bytes", lambda conversation: len(words_of(conversation).encode()), near)
    else:
        known = tokenizer
        figures = Figures("tokens", lambda conversation: len(render(conversation, known).ids), near)
    for row in rows:
        figures.add(row)
    return figures


def _quantile(values: Sequence[int], share: float) -> int:
    """The value below which about that share of the others lies; always one of them."""
    return sorted(values)[round(share * (len(values) - 1))]
