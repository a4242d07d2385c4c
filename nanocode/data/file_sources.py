"""Files by glob, local, ``s3://`` or ``gs://``: parquet and JSONL rows (plain, gzip, zstd), or one document a file.

Order: files by the hash of their name; within a file, parquet row groups and then their rows by hash, JSONL rows by
hash within blocks of `BLOCK_BYTES`. A limit on the bytes taken therefore samples across files, and memory stays bounded
by one block. A single large sorted JSONL file is read from its head: split it when the limit is to sample it evenly.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.config import FilesSource, TableSource
from nanocode.data.documents import WHOLE_ROW, RawDocument, SourceError, row_content, row_document, stable_order
from nanocode.data.reading import Block, Reading, Retry, first_line
from nanocode.data.remote import MatchedFile, find_files, local_copy

BLOCK_BYTES = 64_000_000
BLOCK_ROWS = 8_192
LINE_BYTES = 16_000_000  # a longer line is passed over, not held
_READ_BYTES = 1 << 20
_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def matched_files(source: FilesSource, retry: Retry) -> list[MatchedFile]:
    """The files of a source, sorted by origin. Raises SourceError when there are none."""
    return find_files(source.glob, retry, f"data source {source.name!r}")


def file_blocks(source: FilesSource, reading: Reading, start: Mapping[str, Any] | None = None) -> Iterator[Block]:
    """All documents of the source in stable order, from `start` on.

    Raises SourceError, naming the file, when one cannot be read or is not the one in the manifest.
    """
    where = f"data source {source.name!r}"
    first_file, first_block = (start["file"], start["block"]) if start else (0, 0)
    files = stable_order(matched_files(source, reading.retry), lambda file: file.origin)
    for number, file in enumerate(files[first_file:], first_file):
        try:
            with local_copy(file, reading, where) as path:
                for block, documents in enumerate(documents_of(path, file.origin, source)):
                    if number > first_file or block >= first_block:
                        yield Block(documents, {"file": number, "block": block + 1})
        except (OSError, EOFError, pa.ArrowException) as error:
            raise SourceError(f"{where}: cannot read {file.origin}: {first_line(error)}") from error


def documents_of(path: Path, origin: str, source: TableSource) -> Iterator[list[RawDocument]]:
    """One file's documents in blocks, each in stable order. The origin's ending says what the file is."""
    name, compression = origin, None
    for ending, codec in _COMPRESSIONS.items():
        if origin.endswith(ending):
            name, compression = origin.removesuffix(ending), codec
    if name.endswith((".jsonl", ".ndjson")):
        yield from _jsonl_blocks(path, origin, compression, source)
    elif origin.endswith(".parquet"):
        yield from _parquet_blocks(path, origin, source)
    else:
        with path.open("rb") as stream:
            content = stream.read(BLOCK_BYTES + 1)
        fault = "too_long" if len(content) > BLOCK_BYTES else None
        yield [RawDocument(b"" if fault else content, origin, source.licence, group=origin, fault=fault)]


def _parquet_blocks(path: Path, origin: str, source: TableSource) -> Iterator[list[RawDocument]]:
    columns = [column for column in (source.text_column, source.licence_column) if column is not None]
    whole = source.text_column == WHOLE_ROW
    with pq.ParquetFile(path) as parquet:
        for column in columns[whole:]:
            _check_column(column, parquet.schema_arrow.names, origin, source)
        starts, total = [], 0
        for group in range(parquet.num_row_groups):
            starts.append(total)
            total += parquet.metadata.row_group(group).num_rows
        for group in stable_order(range(parquet.num_row_groups), lambda group: f"{origin}/{group}"):
            number = starts[group]
            for batch in parquet.iter_batches(BLOCK_ROWS, row_groups=[group], columns=None if whole else columns):
                values = [batch.column(column).to_pylist() for column in columns[whole:]]
                if whole:
                    values.insert(0, [row_content(row, source) for row in batch.to_pylist()])
                rows = [
                    row_document(*row, origin=f"{origin}#{number + index}", source=source)
                    for index, row in enumerate(zip(*values, strict=True))
                ]
                number += len(rows)
                yield stable_order(rows, lambda row: row.origin)


def _jsonl_blocks(path: Path, origin: str, compression: str | None, source: TableSource) -> Iterator[list[RawDocument]]:
    with pa.OSFile(str(path)) as file:
        stream = pa.CompressedInputStream(file, compression) if compression else file
        block: list[RawDocument] = []
        held = 0
        for number, line in enumerate(_lines(stream)):
            if line is not None and not line.strip():
                continue
            block.append(_json_row(line, f"{origin}#{number}", f"{origin} line {number + 1}", source))
            held += len(line or b"")
            if held >= BLOCK_BYTES:
                yield stable_order(block, lambda row: row.origin)
                block, held = [], 0
        if block:
            yield stable_order(block, lambda row: row.origin)


def _lines(stream: Any) -> Iterator[bytes | None]:
    """Lines of a binary stream that only knows read(); only LF ends a line. None: one of over LINE_BYTES."""
    pending: list[bytes] = []
    held = 0
    while chunk := stream.read(_READ_BYTES):
        first, *more = chunk.split(b"\n")
        pending.append(first)
        held += len(first)
        if held > LINE_BYTES:
            pending = []
        if more:
            yield b"".join(pending) if held <= LINE_BYTES else None
            yield from more[:-1]
            pending, held = [more[-1]], len(more[-1])
    if held:
        yield b"".join(pending) if held <= LINE_BYTES else None


def _json_row(line: bytes | None, name: str, where: str, source: TableSource) -> RawDocument:
    def faulty(fault: str) -> RawDocument:
        return RawDocument(b"", name, source.licence, group=name, fault=fault)

    if line is None:
        return faulty("too_long")
    try:
        value = json.loads(line.decode("utf-8"), object_pairs_hook=_unique)
    except UnicodeDecodeError:
        return RawDocument(line, name, source.licence, group=name)
    except _DuplicateKey:
        return faulty("duplicate_column")
    except (ValueError, RecursionError):
        return faulty("unparsable")
    whole = source.text_column == WHOLE_ROW and isinstance(value, dict)
    if not whole and (not isinstance(value, dict) or source.text_column not in value):
        _check_column(source.text_column, list(value) if isinstance(value, dict) else [], where, source)
    licence = value.get(source.licence_column) if source.licence_column else None
    return row_document(line if whole else value[source.text_column], licence, origin=name, source=source)


class _DuplicateKey(ValueError):
    """An object with one name twice: which of the two is meant?"""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        raise _DuplicateKey
    return value


def _check_column(column: str, names: list[str], where: str, source: TableSource) -> None:
    if names.count(column) > 1:
        raise SourceError(f"data source {source.name!r}: {where} has {names.count(column)} columns {column!r}: rename")
    if column not in names:
        field = "text_column" if column == source.text_column else "licence_column"
        raise SourceError(
            f"data source {source.name!r}: {where} has no column {column!r}; "
            f"set {field} to one of: {', '.join(sorted(names)) or '(none)'}"
        )
