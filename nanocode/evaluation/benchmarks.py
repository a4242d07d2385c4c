"""What the downloaded benchmarks share: how their files are read, and how a fault in one is told."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


class BenchmarkError(ValueError):
    """A benchmark whose files cannot be used. The message is one line: which file and line, what, and the cure."""


def read_rows(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each row of a .jsonl or .jsonl.gz file with its place, ``FILE line N``, for messages; empty lines are skipped.

    Raises BenchmarkError for a file that is missing, cut off, not UTF-8 or not JSON objects, and for one without rows.
    """
    found = False
    for number, line in enumerate(_lines(path), 1):
        where = f"{path} line {number}"
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            fault = "not UTF-8" if isinstance(error, UnicodeDecodeError) else f"not JSON ({error})"
            raise BenchmarkError(
                f"{where} is {fault}: the file may be cut off, take it from its source again"
            ) from None
        if not isinstance(row, dict):
            raise BenchmarkError(f"{where} is no JSON object but {type(row).__name__}")
        found = True
        yield where, row
    if not found:
        raise BenchmarkError(f"{path} is empty: take it from its source again")


def file_sha256(path: Path) -> str:
    """Of a file's bytes, as they are. Raises BenchmarkError when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise BenchmarkError(f"{path} cannot be read ({error})") from None


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except FileNotFoundError:
        raise BenchmarkError(f"there is no {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise BenchmarkError(f"{path} cannot be read ({error}): take it from its source again") from None
