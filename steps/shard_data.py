"""Stage: one source -> judge -> deduplicate -> split -> parquet shards and a report.

Documents are judged one by one (`nanocode.data.judge`, in `data.workers` processes); what depends on their order
happens here. Whenever the shards of both splits are closed, all that was done is in files, the tally and a place in the
source: that is what is saved, and where a killed stage goes on.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nanocode.config import AnySource, DataConfig
from nanocode.data.deduplicate import Deduplicator
from nanocode.data.documents import SourceError
from nanocode.data.evaluation_sets import overlap_index
from nanocode.data.judge import Judged, judged_blocks
from nanocode.data.reading import Reading, Retry
from nanocode.data.shards import ShardWriter, split_of
from nanocode.data.sources import manifest_digests, read_blocks, source_manifest
from nanocode.data.tally import Tally
from nanocode.stopping import Interrupted
from nanocode.training.progress import Progress
from steps.shard_progress import Place, Saving, Segments, State

REPORT_EVERY_DOCUMENTS = 10_000
MEGABYTE = 1_000_000


def manifest(source: AnySource, retry: Retry | None = None) -> bytes:
    """The canonical listing of the raw bytes this stage reads. Raises SourceError when there are none."""
    return source_manifest(source, retry or Retry())


def run(
    config: DataConfig,
    source: AnySource,
    output: Path,
    report: Callable[[str], None],
    *,
    manifest: bytes | None = None,
    saving: Saving | None = None,
    retry: Retry | None = None,
    stop_requested: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """Shard one source into `output`: ``train-*.parquet``, ``validation-*.parquet`` and ``report.json``; returns the
    report.

    With a `manifest`, files that are not what it says are refused. With `saving`, progress is saved and an earlier
    attempt's is continued; the outcome is the same. Raises SourceError when the source cannot be read, nothing passes
    the filter, or one side of the split stays empty; Interrupted when asked to stop.
    """
    output.mkdir(parents=True, exist_ok=True)
    for stale in output.glob("*.parquet"):
        stale.unlink()
    deduplicator = Deduplicator(config.near_duplicate_threshold)
    segments = Segments(output, saving)
    state = segments.restore(deduplicator) or State()
    tally = state.tally
    if tally.read_documents:
        report(f"{source.name}: goes on after {tally.read_documents:,} documents that were done before")
    show = _shown(source, report)
    with (
        tempfile.TemporaryDirectory(prefix="reading-", dir=output.parent) as scratch,
        ShardWriter(output, config.shard_bytes, state.counts) as writer,
    ):
        patience = retry or Retry(config.max_attempts, report)
        reading = Reading(patience, Path(scratch), manifest_digests(manifest) if manifest is not None else None)
        for place, judged in _judged(config, source, reading, state):
            known_by = judged.fingerprint
            duplicate = deduplicator.check(known_by) if known_by is not None else None
            if tally.add(judged, duplicate) and judged.document is not None:
                segments.add(known_by)
                split = split_of(judged.document.group, config.validation_fraction)
                if writer.write(judged.document, source.name, split):
                    segments.close(State(place, tally, writer.counts))
            show(tally)
            if stop_requested():
                segments.save()
                raise Interrupted(f"stopped in data source {source.name}; run the same command to continue")
    segments.remove()
    report(tally.line(source.name))
    _check_splits(config, source, tally, writer)
    return _write_report(config, source, tally, writer, output)


def _judged(config: DataConfig, source: AnySource, reading: Reading, state: State) -> Iterator[tuple[Place, Judged]]:
    """Every document after the state's place, with the place after it, until `max_bytes` of text are kept."""
    limit = source.max_bytes
    if limit is not None and state.tally.kept_bytes >= limit:
        return
    begin, done = state.place.block, state.place.documents
    blocks = judged_blocks(read_blocks(source, reading, begin), config, source)
    try:
        for block, verdicts in blocks:
            for number, judged in enumerate(verdicts, 1):
                if number > done:
                    yield Place(begin, number), judged
                if limit is not None and state.tally.kept_bytes >= limit:
                    return
            begin, done = block.after, 0
    finally:
        blocks.close()


def _shown(source: AnySource, report: Callable[[str], None]) -> Callable[[Tally], None]:
    """Progress lines: with an estimate where `max_bytes` says how much is wanted, else the counts now and then."""
    if source.max_bytes is None:

        def counts(tally: Tally) -> None:
            if tally.read_documents % REPORT_EVERY_DOCUMENTS == 0:
                report(tally.line(source.name))

        return counts
    total = -(-source.max_bytes // MEGABYTE)
    progress = Progress(f"{source.name}: kept", total, report, unit="megabyte")
    shown = 0

    def megabytes(tally: Tally) -> None:
        nonlocal shown
        if (done := tally.kept_bytes // MEGABYTE) > shown and done < total:
            shown = done
            progress.update(done)

    return megabytes


def _check_splits(config: DataConfig, source: AnySource, tally: Tally, writer: ShardWriter) -> None:
    if tally.kept_documents == 0:
        raise SourceError(
            f"data source {source.name!r} is empty: nothing passed the filter ({tally.line(source.name)})"
        )
    for split, counts in writer.counts.items():
        if counts.documents == 0:
            raise SourceError(
                f"data source {source.name!r}: none of its {tally.kept_documents} documents falls into {split}; "
                f"add documents or change data.validation_fraction (now {config.validation_fraction})"
            )


def _write_report(
    config: DataConfig, source: AnySource, tally: Tally, writer: ShardWriter, output: Path
) -> dict[str, Any]:
    """Write ``report.json`` and, where evaluation sets are given, ``decontamination.json`` with every item touched."""
    splits = {split: {"documents": count.documents, "bytes": count.bytes} for split, count in writer.counts.items()}
    summary = {"source": source.name, "register": source.register_as, **tally.summary(), "splits": splits}
    index = overlap_index(config.decontamination)
    if index is not None:
        summary["decontamination"] = {
            "items": index.checked,
            "unchecked": len(index.unchecked),
            "touched": len(tally.items),
            "contaminated": sum(item.coverage >= config.decontamination.min_coverage for item in tally.items.values()),
            "dropped_documents": tally.skipped["contaminated"],
        }
        details = {
            "items": {name: asdict(item) for name, item in tally.items.items()},
            "unchecked": index.unchecked,
        }
        _write_json(output / "decontamination.json", details)
    _write_json(output / "report.json", summary)
    return summary


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")
