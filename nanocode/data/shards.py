"""Documents on disk: zstd parquet shards per split, and the split itself.

Format: ``train-00000.parquet``, ``train-00001.parquet``, ..., ``validation-00000.parquet``; string columns `text`,
`source`, `origin`, `licence`, `sha256` (of the UTF-8 text) and `group`; row groups of 1,024 documents. The same
documents in the same order give the same bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.data.documents import Document

Split = Literal["train", "validation"]

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


class ShardWriter:
    """Writes the shards of one split; a context manager. A shard is closed once it holds `shard_bytes` of text."""

    def __init__(self, folder: Path, split: Split, shard_bytes: int) -> None:
        self._folder, self._split, self._shard_bytes = folder, split, shard_bytes
        self._rows: list[dict[str, str]] = []
        self._shard_filled = self._shards = 0
        self._parquet: pq.ParquetWriter | None = None
        self.documents = self.bytes = 0

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close_shard()

    def write(self, document: Document, source: str) -> None:
        size = len(document.text.encode("utf-8"))
        self._rows.append(
            {
                "text": document.text,
                "source": source,
                "origin": document.origin,
                "licence": document.licence,
                "sha256": document.sha256,
                "group": document.group,
            }
        )
        self.documents += 1
        self.bytes += size
        self._shard_filled += size
        if self._shard_filled >= self._shard_bytes:
            self._close_shard()
        elif len(self._rows) >= ROW_GROUP_DOCUMENTS:
            self._write_row_group()

    def _write_row_group(self) -> None:
        if self._parquet is None:
            path = self._folder / f"{self._split}-{self._shards:05d}.parquet"
            self._parquet = pq.ParquetWriter(path, SCHEMA, compression="zstd", compression_level=ZSTD_LEVEL)
            self._shards += 1
        table = pa.Table.from_pylist(self._rows, schema=SCHEMA)
        self._parquet.write_table(table, row_group_size=ROW_GROUP_DOCUMENTS)
        self._rows = []

    def _close_shard(self) -> None:
        if self._rows:
            self._write_row_group()
        if self._parquet is not None:
            self._parquet.close()
        self._parquet, self._shard_filled = None, 0


def shard_paths(folder: Path, split: Split) -> list[Path]:
    """The shards of a split in order. Raises ShardError when there are none."""
    paths = sorted(folder.glob(f"{split}-*.parquet"))
    if not paths:
        raise ShardError(f"no {split} shards in {folder}: expected {split}-00000.parquet; shard the data first")
    return paths


def read_documents(folder: Path, split: Split) -> Iterator[StoredDocument]:
    """The documents of a split in the order they were written, one row group in memory. Raises ShardError."""
    for row in _rows(folder, split, ["text", "origin", "licence", "group", "source"]):
        yield StoredDocument(**row)


def read_texts(folder: Path, split: Split) -> Iterator[str]:
    """The texts alone, in the same order. Raises ShardError."""
    for row in _rows(folder, split, ["text"]):
        yield row["text"]


def _rows(folder: Path, split: Split, columns: list[str]) -> Iterator[dict[str, str]]:
    for path in shard_paths(folder, split):
        try:
            parquet = pq.ParquetFile(path)
            for group in range(parquet.num_row_groups):
                yield from parquet.read_row_group(group, columns=columns).to_pylist()
        except (OSError, pa.ArrowException, KeyError) as error:
            raise ShardError(f"{path} is not a readable shard: {str(error).splitlines()[0]}") from error
