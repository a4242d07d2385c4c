"""The CORE bundle as it is distributed: what is asked, with how many examples, and what chance would get.

    core.yaml             icl_tasks: label, dataset_uri, num_fewshot, icl_task_type, continuation_delimiter
    eval_meta_data.csv    "Eval Task", "Random baseline" (in per cent), and columns that are not read
    eval_data/**.jsonl    the rows of each task, at its dataset_uri

Everything is checked when it is read: a run that is hours long does not end at the last line of the last file.
"""

from __future__ import annotations

import csv
import hashlib
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any, Literal, get_args

import yaml

from nanocode.evaluation.benchmarks import BenchmarkError, file_sha256, read_rows

TaskType = Literal["multiple_choice", "schema", "language_modeling"]

TASKS_FILE = "core.yaml"
BASELINES_FILE = "eval_meta_data.csv"
DATA_FOLDER = "eval_data"
_TASK_COLUMN, _BASELINE_COLUMN = "Eval Task", "Random baseline"
_SHUFFLE_SEED = 1337
_DEFAULT_DELIMITER = " "


@dataclass(frozen=True)
class Item:
    """One question: pairs of a context and its continuation, of which `gold` is the right one.

    Options of a multiple choice share their context, those of a schema their continuation; language modelling has one.
    """

    options: tuple[tuple[str, str], ...]
    gold: int


@dataclass(frozen=True)
class CoreTask:
    """One task: its items in the order in which they are asked, and how. `baseline` is chance's accuracy, 0..1."""

    label: str
    kind: TaskType
    shots: int
    delimiter: str
    baseline: float
    items: tuple[Item, ...]
    file: Path

    def first(self, examples: int | None) -> CoreTask:
        """The task cut to its first items. Raises BenchmarkError when too few are left for its examples."""
        items = self.items[:examples]
        if len(items) <= self.shots:
            raise BenchmarkError(
                f"{self.file}: {len(items)} rows of {self.label} are too few, since each is asked after {self.shots} "
                f"others: take at least {self.shots + 1}"
            )
        return replace(self, items=items)


@dataclass(frozen=True)
class Bundle:
    """All tasks, and the files they were read from, which are all that a copy needs."""

    folder: Path
    tasks: tuple[CoreTask, ...]

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Relative to the folder, with forward slashes, sorted."""
        data = {task.file.relative_to(self.folder).as_posix() for task in self.tasks}
        return tuple(sorted({TASKS_FILE, BASELINES_FILE, *data}))

    @cached_property
    def digest(self) -> str:
        """sha256 over the names and contents of the files: the same wherever the bundle lies."""
        lines = [f"{file_sha256(self.folder / name)}  {name}\n" for name in self.files]
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    def items(self, examples_per_task: int | None) -> int:
        """How many questions are asked in all."""
        return sum(len(task.items[:examples_per_task]) for task in self.tasks)


def read_bundle(folder: Path) -> Bundle:
    """Read and check a whole bundle. Raises BenchmarkError, one line that names the file and, in it, the line."""
    path = folder / TASKS_FILE
    entries = _entries(path)
    baselines = _baselines(folder / BASELINES_FILE)
    tasks = [_task(folder, entry, baselines, f"{path}: task {number}") for number, entry in enumerate(entries, 1)]
    labels = [task.label for task in tasks]
    for label in labels:
        if labels.count(label) > 1:
            raise BenchmarkError(f"{path}: two tasks are called {label!r}")
    return Bundle(folder, tuple(tasks))


def _entries(path: Path) -> Sequence[Any]:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BenchmarkError(f"there is no {path}: name the folder that holds {TASKS_FILE}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BenchmarkError(f"{path} is not readable YAML: {' '.join(str(error).split())}") from None
    entries = document.get("icl_tasks") if isinstance(document, dict) else None
    if not isinstance(entries, list) or not entries:
        raise BenchmarkError(f"{path} has no list icl_tasks of tasks")
    return entries


def _baselines(path: Path) -> dict[str, float]:
    """Accuracy of chance by task, 0..1; the file has per cent."""
    found = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, strict=True)
            for column in (_TASK_COLUMN, _BASELINE_COLUMN):
                if column not in (reader.fieldnames or ()):
                    raise BenchmarkError(f"{path} has no column {column!r}")
            for row in reader:
                found[row[_TASK_COLUMN]] = _baseline(row[_BASELINE_COLUMN], f"{path} line {reader.line_num}")
    except FileNotFoundError:
        raise BenchmarkError(f"there is no {path}: it says what chance gets in each task") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BenchmarkError(f"{path} is not a readable table: {error}") from None
    return found


def _baseline(text: str | None, where: str) -> float:
    try:
        percent = float(text or "")
    except ValueError:
        raise BenchmarkError(f"{where}: the random baseline is {text!r} and not a number of per cent") from None
    if not 0 <= percent < 100:
        raise BenchmarkError(f"{where}: a random baseline of {text} per cent leaves nothing to be measured")
    return 0.01 * percent


def _task(folder: Path, entry: Any, baselines: Mapping[str, float], where: str) -> CoreTask:
    if not isinstance(entry, dict) or not isinstance(entry.get("label"), str):
        raise BenchmarkError(f"{where} has no label")
    label = entry["label"]
    where = f"{where} ({label})"
    shots, delimiter = entry.get("num_fewshot"), entry.get("continuation_delimiter", _DEFAULT_DELIMITER)
    kind = next((each for each in get_args(TaskType) if each == entry.get("icl_task_type")), None)
    if kind is None:
        known = ", ".join(get_args(TaskType))
        raise BenchmarkError(f"{where}: its type {entry.get('icl_task_type')!r} is none of {known}")
    if not isinstance(shots, list) or len(shots) != 1 or type(shots[0]) is not int or shots[0] < 0:
        raise BenchmarkError(f"{where}: num_fewshot is {shots!r}, and not a list of one number of examples")
    if not isinstance(delimiter, str):
        raise BenchmarkError(f"{where}: continuation_delimiter is {delimiter!r} and not a text")
    if label not in baselines:
        raise BenchmarkError(f"{where}: {BASELINES_FILE} has no line for it")
    file = _data_file(folder, entry.get("dataset_uri"), where)
    items = [_item(kind, row, place) for place, row in read_rows(file)]
    # Always the same order, so that the first so many rows are a fair sample and the same for everybody.
    random.Random(_SHUFFLE_SEED).shuffle(items)
    task = CoreTask(label, kind, shots[0], delimiter, baselines[label], tuple(items), file)
    return task.first(None)


def _data_file(folder: Path, uri: Any, where: str) -> Path:
    relative = PurePosixPath(uri) if isinstance(uri, str) and uri else None
    if relative is None or relative.is_absolute() or ".." in relative.parts:
        raise BenchmarkError(f"{where}: dataset_uri is {uri!r} and not a path inside {DATA_FOLDER}")
    return folder / DATA_FOLDER / relative


def _item(kind: TaskType, row: Mapping[str, Any], where: str) -> Item:
    if kind == "language_modeling":
        # Contexts of some sets end in spaces, which would belong to the continuation's first token.
        return Item(((_text(row, "context", where).strip(), _answer(row, "continuation", where)),), 0)
    if kind == "multiple_choice":
        query = _text(row, "query", where)
        options = [(query, choice) for choice in _texts(row, "choices", where)]
        if not all(choice for _, choice in options):
            raise BenchmarkError(f"{where}: one of its choices is empty")
    else:
        continuation = _answer(row, "continuation", where)
        options = [(context, continuation) for context in _texts(row, "context_options", where)]
    gold = row.get("gold")
    if type(gold) is not int or not 0 <= gold < len(options):
        raise BenchmarkError(f"{where}: gold is {gold!r} and not the number of one of {len(options)} options, from 0")
    return Item(tuple(options), gold)


def _text(row: Mapping[str, Any], column: str, where: str) -> str:
    value = row.get(column)
    if not isinstance(value, str):
        raise BenchmarkError(f"{where} has no text in {column!r}: it has {', '.join(sorted(row)) or 'nothing'}")
    return value


def _answer(row: Mapping[str, Any], column: str, where: str) -> str:
    value = _text(row, column, where)
    if not value.strip():
        raise BenchmarkError(f"{where}: its {column} is empty, so that nothing can be measured")
    return value


def _texts(row: Mapping[str, Any], column: str, where: str) -> Iterator[str]:
    values = row.get(column)
    if not isinstance(values, list) or len(values) < 2 or not all(isinstance(value, str) for value in values):
        raise BenchmarkError(f"{where} has no list of two or more texts in {column!r}")
    return iter(values)
