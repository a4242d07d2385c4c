"""The evaluation texts that training data is compared with, read from files or from the built-in task families.

Their content decides which documents are kept, so the config pins it: a set whose digest is another one is refused.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.config import DecontaminationConfig, EvaluationSet
from nanocode.data.decontaminate import EvaluationItem, OverlapIndex, items_digest
from nanocode.data.documents import SourceError
from nanocode.data.reading import Retry, first_line
from nanocode.data.remote import find_files

_COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}


def overlap_index(config: DecontaminationConfig) -> OverlapIndex | None:
    """The index of all sets; None when there is none. Raises SourceError for a set that is not the pinned one."""
    if not config.sets:
        return None
    items = [item for each in config.sets for item in pinned_items(each)]
    return OverlapIndex(items, config.words, min(config.words, config.min_words))


def pinned_items(evaluation_set: EvaluationSet) -> list[EvaluationItem]:
    """The items of a set in stable order. Raises SourceError when it is empty or its digest is not the pinned one."""
    where = f"evaluation set {evaluation_set.name!r}"
    if evaluation_set.kind == "tasks":
        items = list(_task_items(evaluation_set))
    else:
        items = list(_file_items(evaluation_set, where))
    if not items:
        raise SourceError(f"{where} is empty: {evaluation_set.glob} holds no text")
    digest = items_digest(items)
    if digest != evaluation_set.sha256:
        raise SourceError(
            f"{where} is not the pinned one: its {len(items)} items have sha256 {digest}, "
            f"the config says {evaluation_set.sha256}; if they are the right ones, set sha256 to that"
        )
    return items


def _task_items(evaluation_set: EvaluationSet) -> Iterator[EvaluationItem]:
    # Named at run time, so that an edit to a family is no edit to the code that shards: what it may change is pinned.
    registry = importlib.import_module(".".join(("nanocode", "tasks", "registry")))
    for task in registry.sample_tasks("eval", evaluation_set.tasks, evaluation_set.seed):
        yield EvaluationItem(f"{evaluation_set.name}/{task.id}", task.prompt)


def _file_items(evaluation_set: EvaluationSet, where: str) -> Iterator[EvaluationItem]:
    glob = evaluation_set.glob or ""
    if "://" in glob:
        raise SourceError(f"{where}: {glob} is not local; copy the evaluation texts to this machine")
    for file in find_files(glob, Retry(), where):
        try:
            for number, text in enumerate(
                _texts(Path(file.path), evaluation_set.text_columns, f"{where}: {file.origin}")
            ):
                yield EvaluationItem(f"{evaluation_set.name}/{file.origin}#{number}", text)
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
            raise SourceError(f"{where}: cannot read {file.origin}: {first_line(error)}") from error


def _texts(path: Path, columns: tuple[str, ...], where: str) -> Iterator[str]:
    codec = _COMPRESSIONS.get(path.suffix)
    kind = Path(path.stem).suffix if codec else path.suffix
    if kind == ".parquet":
        for row in pq.read_table(path).to_pylist():
            yield _joined(row, columns, where)
        return
    with pa.OSFile(str(path)) as file:
        data = (pa.CompressedInputStream(file, codec) if codec else file).read().decode("utf-8")
    if kind not in (".jsonl", ".ndjson"):
        yield data
        return
    for number, line in enumerate(data.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise SourceError(f"{where} line {number} is not JSON: {first_line(error)}") from error
            yield _joined(row, columns, f"{where} line {number}")


def _joined(row: Any, columns: tuple[str, ...], where: str) -> str:
    found = [row.get(column) if isinstance(row, dict) else None for column in columns]
    values = [value for value in found if isinstance(value, str)]
    if len(values) < len(columns):
        names = ", ".join(sorted(row)) if isinstance(row, dict) else "(none)"
        raise SourceError(f"{where} has no text in {' and '.join(columns)}; set text_columns to some of: {names}")
    return "\n".join(values)
