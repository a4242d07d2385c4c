"""Stage: one source -> filter -> deduplicate -> split -> parquet shards and a report."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanocode.config import AnySource, DataConfig
from nanocode.data.deduplicate import Deduplicator
from nanocode.data.documents import Document, SourceError, admit
from nanocode.data.shards import ShardWriter, split_of
from nanocode.data.sources import raw_documents, source_manifest

REPORT_EVERY_DOCUMENTS = 10_000


@dataclass
class _Tally:
    """What became of the documents read so far."""

    read_documents: int = 0
    read_bytes: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    kept_documents: int = 0
    kept_bytes: int = 0

    def line(self, source: str) -> str:
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in sorted(self.skipped.items())) or "none"
        return (
            f"{source}: read {self.read_documents:,} documents ({self.read_bytes:,} bytes), "
            f"kept {self.kept_documents:,} ({self.kept_bytes:,} bytes), skipped: {skipped}"
        )


def manifest(source: AnySource) -> bytes:
    """The canonical listing of the raw bytes this stage reads. Raises SourceError when there are none."""
    return source_manifest(source)


def run(config: DataConfig, source: AnySource, output: Path, report: Callable[[str], None]) -> dict[str, Any]:
    """Shard one source into `output`: ``train-*.parquet``, ``validation-*.parquet`` and ``report.json``; returns the
    report.

    Raises SourceError when the source cannot be read, nothing passes the filter, or one side of the split stays empty.
    """
    tally = _Tally()
    output.mkdir(parents=True, exist_ok=True)
    for stale in output.glob("*.parquet"):
        stale.unlink()
    with (
        ShardWriter(output, "train", config.shard_bytes) as train,
        ShardWriter(output, "validation", config.shard_bytes) as validation,
    ):
        writers = {"train": train, "validation": validation}
        for document in _kept(config, source, tally, report):
            writers[split_of(document.group, config.validation_fraction)].write(document, source.name)
    report(tally.line(source.name))
    splits = {split: {"documents": writer.documents, "bytes": writer.bytes} for split, writer in writers.items()}
    _check_splits(config, source, tally, splits)
    summary = {
        "source": source.name,
        "register": source.register_as,
        "read": {"documents": tally.read_documents, "bytes": tally.read_bytes},
        "kept": {"documents": tally.kept_documents, "bytes": tally.kept_bytes},
        "skipped": dict(sorted(tally.skipped.items())),
        "splits": splits,
    }
    (output / "report.json").write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    return summary


def _kept(config: DataConfig, source: AnySource, tally: _Tally, report: Callable[[str], None]) -> Iterator[Document]:
    """The documents that pass, until the source ends or `max_bytes` of text are kept."""
    deduplicator = Deduplicator(config.near_duplicate_threshold)
    for raw in raw_documents(source):
        tally.read_documents += 1
        tally.read_bytes += len(
            raw.content if isinstance(raw.content, bytes) else raw.content.encode("utf-8", "replace")
        )
        if tally.read_documents % REPORT_EVERY_DOCUMENTS == 0:
            report(tally.line(source.name))
        document = admit(raw, config.min_document_bytes, config.max_document_bytes)
        verdict = document if isinstance(document, str) else deduplicator.check(document.text)
        if verdict is not None or isinstance(document, str):
            tally.skipped[str(verdict)] += 1
            continue
        tally.kept_documents += 1
        tally.kept_bytes += len(document.text.encode("utf-8"))
        yield document
        if source.max_bytes is not None and tally.kept_bytes >= source.max_bytes:
            return


def _check_splits(config: DataConfig, source: AnySource, tally: _Tally, splits: dict[str, dict[str, int]]) -> None:
    if tally.kept_documents == 0:
        raise SourceError(
            f"data source {source.name!r} is empty: nothing passed the filter ({tally.line(source.name)})"
        )
    for split, counts in splits.items():
        if counts["documents"] == 0:
            raise SourceError(
                f"data source {source.name!r}: none of its {tally.kept_documents} documents falls into {split}; "
                f"add documents or change data.validation_fraction (now {config.validation_fraction})"
            )
