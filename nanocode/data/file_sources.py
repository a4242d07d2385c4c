"""Files by glob, local, ``s3://`` or ``gs://`` (Arrow's file systems): parquet and JSONL rows, or one document a file.

Order: files by the hash of their name; within a file, parquet row groups and then their rows by hash, JSONL rows by
hash within blocks of `BLOCK_BYTES`. A limit on the bytes taken therefore samples across files, and memory stays bounded
by one block. A single large sorted JSONL file is read from its head: split it when the limit is to sample it evenly.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from nanocode.config import FilesSource
from nanocode.data.documents import RawDocument, SourceError, stable_order

BLOCK_BYTES = 64_000_000
_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True)
class MatchedFile:
    """A file that the glob found. `origin` is its name relative to the part of the glob before the first wildcard."""

    filesystem: fs.FileSystem
    path: str
    origin: str

    def open(self) -> Any:
        return self.filesystem.open_input_file(self.path)


def matched_files(source: FilesSource) -> list[MatchedFile]:
    """The files of a source, sorted by origin. ``**`` spans folders. Raises SourceError when there are none."""
    filesystem, pattern = _filesystem(source)
    base = _base(pattern)
    relative_pattern = _glob_regex(pattern[len(base) :].lstrip("/"))
    try:
        found = filesystem.get_file_info(fs.FileSelector(base, recursive=True, allow_not_found=True))
    except OSError as error:
        raise SourceError(f"data source {source.name!r}: cannot list {source.glob}: {_first_line(error)}") from error
    files = []
    for info in found:
        origin = PurePosixPath(info.path).relative_to(base).as_posix()
        if info.type == fs.FileType.File and relative_pattern.fullmatch(origin):
            files.append(MatchedFile(filesystem, info.path, origin))
    if not files:
        raise SourceError(f"data source {source.name!r}: no file matches {source.glob!r}; correct data.sources glob")
    return sorted(files, key=lambda file: file.origin)


def file_documents(source: FilesSource) -> Iterator[RawDocument]:
    """All documents of the source, in stable order. Raises SourceError, naming the file, when one cannot be read."""
    for file in stable_order(matched_files(source), lambda file: file.origin):
        suffix = PurePosixPath(file.origin).suffix
        try:
            if suffix == ".parquet":
                yield from _parquet_rows(file, source)
            elif suffix in (".jsonl", ".ndjson"):
                yield from _jsonl_rows(file, source)
            else:
                with file.open() as stream:
                    yield RawDocument(stream.read(), file.origin, source.licence, group=file.origin)
        except (OSError, pa.ArrowException) as error:
            raise SourceError(
                f"data source {source.name!r}: cannot read {file.origin}: {_first_line(error)}"
            ) from error


def _parquet_rows(file: MatchedFile, source: FilesSource) -> Iterator[RawDocument]:
    with file.open() as stream:
        parquet = pq.ParquetFile(stream)
        if source.text_column not in parquet.schema_arrow.names:
            raise _no_column(file, source, parquet.schema_arrow.names)
        starts, total = [], 0
        for group in range(parquet.num_row_groups):
            starts.append(total)
            total += parquet.metadata.row_group(group).num_rows
        for group in stable_order(range(parquet.num_row_groups), lambda group: f"{file.origin}/{group}"):
            column = parquet.read_row_group(group, columns=[source.text_column]).column(0).to_pylist()
            rows = [_row(text, file, starts[group] + index, source) for index, text in enumerate(column)]
            yield from stable_order(rows, lambda row: row.origin)


def _jsonl_rows(file: MatchedFile, source: FilesSource) -> Iterator[RawDocument]:
    with file.open() as stream:
        block: list[RawDocument] = []
        held = 0
        for number, line in enumerate(_lines(stream)):
            if not line.strip():
                continue
            block.append(_json_row(line, number, file, source))
            held += len(line)
            if held >= BLOCK_BYTES:
                yield from stable_order(block, lambda row: row.origin)
                block, held = [], 0
        yield from stable_order(block, lambda row: row.origin)


def _lines(stream: Any, chunk_bytes: int = 1 << 20) -> Iterator[bytes]:
    """Lines of a binary stream that only knows read(); only LF ends a line."""
    pending = b""
    while chunk := stream.read(chunk_bytes):
        *lines, pending = (pending + chunk).split(b"\n")
        yield from lines
    if pending:
        yield pending


def _json_row(line: bytes, number: int, file: MatchedFile, source: FilesSource) -> RawDocument:
    try:
        value = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError:
        return _row(line, file, number, source)
    except ValueError:
        return _row(b"", file, number, source, fault="unparsable")
    if not isinstance(value, dict) or source.text_column not in value:
        raise _no_column(file, source, list(value) if isinstance(value, dict) else [], f" line {number + 1}")
    return _row(value[source.text_column], file, number, source)


def _row(content: Any, file: MatchedFile, number: int, source: FilesSource, fault: str | None = None) -> RawDocument:
    """One row; a null counts as empty, anything else that is not text as a fault."""
    origin = f"{file.origin}#{number}"
    if content is None:
        content = b""
    elif not isinstance(content, (str, bytes)):
        content, fault = b"", "not_text"
    return RawDocument(content, origin, source.licence, group=origin, fault=fault)


def _no_column(file: MatchedFile, source: FilesSource, names: list[str], where: str = "") -> SourceError:
    return SourceError(
        f"data source {source.name!r}: {file.origin}{where} has no column {source.text_column!r}; "
        f"set text_column to one of: {', '.join(sorted(names)) or '(none)'}"
    )


def _filesystem(source: FilesSource) -> tuple[fs.FileSystem, str]:
    """The file system of a glob and the pattern within it; a local pattern becomes absolute."""
    if "://" not in source.glob:
        return fs.LocalFileSystem(), (Path.cwd() / Path(source.glob).expanduser()).as_posix()
    base = _base(source.glob)
    try:
        filesystem, path = fs.FileSystem.from_uri(base)
    except (OSError, pa.ArrowException) as error:
        raise SourceError(f"data source {source.name!r}: cannot open {source.glob}: {_first_line(error)}") from error
    return filesystem, path.rstrip("/") + "/" + source.glob[len(base) :].lstrip("/")


def _base(pattern: str) -> str:
    """The folder before the first wildcard; without one, the folder of the file."""
    wildcard = _WILDCARD.search(pattern)
    head = pattern[: wildcard.start()] if wildcard else pattern
    return head[: head.rindex("/")] or "/"


def _glob_regex(pattern: str) -> re.Pattern[str]:
    """``**/`` matches any number of folders; ``*``, ``?`` and ``[...]`` stay within one name."""
    parts = ["(?:[^/]+/)*" if name == "**" else _name_regex(name) + "/" for name in pattern.split("/")]
    return re.compile("".join(parts).removesuffix("/"))


def _name_regex(name: str) -> str:
    parts = []
    for piece in re.split(r"(\*|\?|\[!?[^\]]+\])", name):
        if piece == "*":
            parts.append("[^/]*")
        elif piece == "?":
            parts.append("[^/]")
        elif piece.startswith("[") and piece.endswith("]"):
            parts.append("(?!/)[" + re.sub("^!", "^", piece[1:-1]).replace("\\", r"\\") + "]")
        else:
            parts.append(re.escape(piece))
    return "".join(parts)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
