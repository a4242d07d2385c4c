"""Append-only files as segments that never change but the last, and their lines sorted without being held in memory."""

from __future__ import annotations

import gzip
import heapq
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

SEGMENT_BYTES = 4 << 20
RUN_BYTES = 32 << 20
_PIECE_BYTES = 1 << 20


def cut(source: Path, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
    """Bring the segments of `source` in `folder` up to date; whole ones are there already and stay as they are.

    A store that goes by content then takes each of them once, however often the growing file is saved.
    """
    size = source.stat().st_size
    with source.open("rb") as file:
        for number, start in enumerate(range(0, size, segment_bytes)):
            target = folder / f"{source.name}.{number:05d}"
            if not target.exists() or target.stat().st_size < segment_bytes:
                file.seek(start)
                target.write_bytes(file.read(segment_bytes))


def join(segments: Path, folder: Path) -> None:
    """The files whose segments lie in one folder, whole in another; what was saved whole is taken as it is."""
    for path in sorted(segments.iterdir()):
        name = path.stem if path.suffix.removeprefix(".").isdecimal() else path.name
        with (folder / name).open("ab") as whole, path.open("rb") as segment:
            shutil.copyfileobj(segment, whole, _PIECE_BYTES)


def write_sorted(sources: Iterable[Path], target: Path, scratch: Path, run_bytes: int = RUN_BYTES) -> None:
    """All lines of `sources` in order, compressed, the same bytes whatever order they had.

    External merge sort: `run_bytes` of lines are in memory at a time, sorted runs of them lie in `scratch`.
    """
    with tempfile.TemporaryDirectory(dir=scratch) as folder, ExitStack() as stack:
        runs = [stack.enter_context(run.open("rb")) for run in _runs(_lines(sources), Path(folder), run_bytes)]
        file = stack.enter_context(target.open("wb"))
        with gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) as compressed:
            compressed.writelines(heapq.merge(*runs))


def _lines(sources: Iterable[Path]) -> Iterator[bytes]:
    for source in sources:
        with source.open("rb") as lines:
            yield from lines


def _runs(lines: Iterable[bytes], folder: Path, run_bytes: int) -> Iterator[Path]:
    held: list[bytes] = []
    size = number = 0
    for line in lines:
        held.append(line)
        size += len(line)
        if size >= run_bytes:
            yield _run(held, folder / str(number))
            held, size, number = [], 0, number + 1
    if held:
        yield _run(held, folder / str(number))


def _run(lines: list[bytes], path: Path) -> Path:
    with path.open("wb") as file:
        file.writelines(sorted(lines))
    return path
