"""Documents on disk: zstd parquet shards per split, and the split itself.

Format: ``train-00000.parquet``, ``train-00001.parquet``, ..., ``validation-00000.parquet``; string columns `text`,
`source`, `origin`, `licence`, `sha256` (of the UTF-8 text) and `group`; row groups of 1,024 documents. The same
documents in the same order give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.data.documents import Document

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = get_args(Split)

SCHEMA = pa.schema([(name, pa.string()) for name in ("text", "source", "origin", "licence", "sha256", "group")])
ROW_GROUP_DOCUMENTS = 1_024
ZSTD_LEVEL = 6


class ShardError(ValueError):
    """Shards that are not there or cannot be read. The message is one line."""


@dataclass(frozen=True)
class StoredDocument(Document):
    """A document as it stands in a shard, with the name of its source."""

    source: str


def split_of(group: str, validation_fraction: float) -> Split:
    """The side of a group: by its own hash alone, whatever else there is and in whatever order it comes."""
    value = int.from_bytes(hashlib.sha256(f"split\0{group}".encode()).digest()[:8], "big")
    return "validation" if value < validation_fraction * 2**64 else "train"


@dataclass
class SplitCount:
    """What was written to one split so far."""

    documents: int = 0
    bytes: int = 0
    shards: int = 0


class ShardWriter:
    """Writes the shards of both splits; a context manager.

    Once the two open shards together hold `shard_bytes` of text, both are closed: then everything written is whole
    files, and a writer that is given `counts` and that folder goes on from there. The boundaries follow from the
    documents alone.
    """

    def __init__(self, folder: Path, shard_bytes: int, counts: Mapping[Split, SplitCount] | None = None) -> None:
        self._folder, self._shard_bytes = folder, shard_bytes
        self._rows: dict[Split, list[dict[str, str]]] = {split: [] for split in SPLITS}
        self._open: dict[Split, pq.ParquetWriter] = {}
        self._filled = 0
        self.counts = {split: replace(counts[split]) if counts else SplitCount() for split in SPLITS}

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_shards()

    def write(self, document: Document, source: str, split: Split) -> bool:
        """Add a document; True when that closed the shards of both splits."""
        size = len(document.text.encode("utf-8"))
        self._rows[split].append(
            {
                "text": document.text,
                "source": source,
                "origin": document.origin,
                "licence": document.licence,
                "sha256": document.sha256,
                "group": document.group,
            }
        )
        self.counts[split].documents += 1
        self.counts[split].bytes += size
        self._filled += size
        if self._filled >= self._shard_bytes:
            self._close_shards()
            return True
        if len(self._rows[split]) >= ROW_GROUP_DOCUMENTS:
            self._write_row_group(split)
        return False

    def _write_row_group(self, split: Split) -> None:
        if split not in self._open:
            path = self._folder / f"{split}-{self.counts[split].shards:05d}.parquet"
            self._open[split] = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=ZSTD_LEVEL)
            self.counts[split].shards += 1
        table = pa.Table.from_pylist(self._rows[split], schema=SCHEMA)
        self._open[split].write_table(table, row_group_size=ROW_GROUP_DOCUMENTS)
        self._rows[split] = []

    def _close_shards(self) -> None:
        for split in SPLITS:
            if self._rows[split]:
                self._write_row_group(split)
        for writer in self._open.values():
            writer.close()
        self._open.clear()
        self._filled = 0


def shard_paths(folder: Path, split: Split) -> list[Path]:
    """The shards of a split in order. Raises ShardError when there are none."""
    paths = sorted(folder.glob(f"{split}-*.parquet"))
    if not paths:
        raise ShardError(f"no {split} shards in {folder}: expected {split}-00000.parquet; shard the data first")
    return paths


def read_documents(folder: Path, split: Split) -> Iterator[StoredDocument]:
    """The documents of a split in the order they were written, one row group in memory. Raises ShardError."""
    for path in shard_paths(folder, split):
        for row in _rows(path, ["text", "origin", "licence", "group", "source"]):
            yield StoredDocument(**row)


def read_texts(folder: Path, split: Split) -> Iterator[str]:
    """The texts alone, in the same order. Raises ShardError."""
    for path in shard_paths(folder, split):
        yield from read_shard_texts(path)


def read_shard_texts(path: Path) -> Iterator[str]:
    """The texts of one shard in order, one row group in memory. Raises ShardError."""
    for row in _rows(path, ["text"]):
        yield row["text"]


def _rows(path: Path, columns: list[str]) -> Iterator[dict[str, str]]:
    try:
        parquet = pq.ParquetFile(path)
        for group in range(parquet.num_row_groups):
            yield from parquet.read_row_group(group, columns=columns).to_pylist()
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ShardError(f"{path} is not a readable shard: {str(error).splitlines()[0]}") from error
