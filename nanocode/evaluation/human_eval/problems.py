"""HumanEval's problems (Chen et al., 2021), or any others with the same columns.

A row has ``task_id``, ``prompt`` (imports and helpers, then a function without a body), ``entry_point`` (its name),
``canonical_solution`` (its body) and ``test``, which defines ``check(candidate)``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from nanocode.evaluation.benchmarks import BenchmarkError, read_rows
from nanocode.evaluation.human_eval.execution import Case
from nanocode.evaluation.human_eval.extraction import preamble

_CURE = "take it from its source again"


@dataclass(frozen=True)
class Problem:
    """One row."""

    task_id: str
    prompt: str
    entry_point: str
    canonical_solution: str
    test: str

    def case(self, program: str) -> Case:
        """A program as the judge takes it."""
        return Case(program, self.entry_point, preamble(self.prompt, self.entry_point), self.test)

    @property
    def solution(self) -> str:
        """The program that is right."""
        return self.prompt + self.canonical_solution


def read_problems(path: Path) -> tuple[Problem, ...]:
    """The problems of a ``.jsonl`` or ``.jsonl.gz`` file, in its order. Other columns are left alone.

    Raises BenchmarkError naming file and line.
    """
    places: dict[str, str] = {}
    problems = []
    for where, row in read_rows(path):
        problem = _problem(row, where)
        if problem.task_id in places:
            raise BenchmarkError(f"{where} has the task_id of {places[problem.task_id]}, {problem.task_id}: {_CURE}")
        places[problem.task_id] = where
        problems.append(problem)
    return tuple(problems)


def _problem(row: Mapping[str, Any], where: str) -> Problem:
    values = {}
    for name in (each.name for each in fields(Problem)):
        if name not in row:
            raise BenchmarkError(f"{where} has no {name}: HumanEval's rows have {_columns()}")
        if not isinstance(row[name], str) or not row[name].strip():
            raise BenchmarkError(f"{where}: {name} is {type(row[name]).__name__ if row[name] else 'empty'}, not text")
        values[name] = row[name]
    problem = Problem(**values)
    try:
        preamble(problem.prompt, problem.entry_point)
    except ValueError as error:
        raise BenchmarkError(f"{where}: {error}: {_CURE}") from None
    if not re.search(r"^def[ \t]+check[ \t]*\(", problem.test, re.MULTILINE):
        raise BenchmarkError(f"{where}: the test does not define check(candidate): {_CURE}")
    return problem


def _columns() -> str:
    return ", ".join(each.name for each in fields(Problem))
