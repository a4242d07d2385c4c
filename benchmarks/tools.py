"""What the four tools cost beside the work that is asked of them: Bash with `true`, Read, Edit and Grep.

    .venv/bin/python benchmarks/tools.py [--calls 100] [--files 100000]

Read, Edit and Grep work on a folder of 200 small files; `grep child` is a pattern that is matched in a process of its
own. `bash large` runs in a workspace of --files files, which is searched for protected names before and after each
command; `first` is its first call, which reads every name. `bash unconfined` is the same shell without any sandbox, the
floor. Calls of all kinds take turns, so that a busy moment falls on each. Milliseconds; the last line is one JSON
document. Targets on an idle machine: Bash 60, Read and Edit 5.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from nanocode.agent.layers import probe
from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

FILES_OF_A_PROJECT, FILES_OF_A_FOLDER = 200, 100
TARGETS = {"bash": 60.0, "read": 5.0, "edit": 5.0}


def main() -> None:
    arguments = _arguments()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="nanocode-tools-") as folder:
        small, large = Path(folder, "small"), Path(folder, "large")
        write_files(small, FILES_OF_A_PROJECT)
        write_files(large, arguments.files)
        toolboxes = [Toolbox(root, Policy("auto"), Sandbox()) for root in (small, large)]
        first = _milliseconds(lambda: _use(toolboxes[1], "Bash", command="true"))
        times = measure(calls(*toolboxes), arguments.calls)
    document = {
        "benchmark": "tools",
        "calls": arguments.calls,
        "files_of_the_large_workspace": arguments.files,
        "milliseconds": {name: summary(values) for name, values in times.items()},
        "bash_large_first": round(first, 2),
        "targets_met": {name: statistics.median(times[name]) < target for name, target in TARGETS.items()},
        "layers": {layer.name: layer.live for layer in probe(Sandbox())},
        "root": os.geteuid() == 0,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }
    print(json.dumps(document))  # noqa: T201


def calls(small: Toolbox, large: Toolbox) -> dict[str, Callable[[], object]]:
    """Name of each measured call, and the call; none of them fails."""
    values = count()

    def edit() -> None:
        value = next(values)
        _use(small, "Edit", file_path="d0/f0.py", old_string=f"x = {value}\n", new_string=f"x = {value + 1}\n")

    shell = ["bash", "-c", "true"]
    return {
        "bash": lambda: _use(small, "Bash", command="true"),
        "bash large": lambda: _use(large, "Bash", command="true"),
        "bash unconfined": lambda: subprocess.run(shell, check=True),
        "read": lambda: _use(small, "Read", file_path="d0/f1.py"),
        "edit": edit,
        "grep": lambda: _use(small, "Grep", pattern="def one"),
        "grep child": lambda: _use(small, "Grep", pattern=r"(x+)+ = 7$"),
    }


def measure(actions: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of every call, by name; one round is run beforehand and not counted."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for number in range(-1, rounds):
        for name, action in actions.items():
            taken = _milliseconds(action)
            if number >= 0:
                times[name].append(taken)
    for name, values in times.items():
        print(f"{name:<16} {statistics.median(values):8.2f} ms  at least {min(values):8.2f}")  # noqa: T201
    return times


def summary(values: list[float]) -> dict[str, float]:
    """Median, fastest, and the bounds of the middle half."""
    low, middle, high = statistics.quantiles(values, n=4)
    numbers = {"median": middle, "min": min(values), "quarter": low, "three_quarters": high}
    return {name: round(value, 2) for name, value in numbers.items()}


def write_files(folder: Path, files: int) -> None:
    """Small Python files, FILES_OF_A_FOLDER in each folder."""
    for number in range(files):
        path = folder / f"d{number // FILES_OF_A_FOLDER}" / f"f{number % FILES_OF_A_FOLDER}.py"
        if number % FILES_OF_A_FOLDER == 0:
            path.parent.mkdir(parents=True)
        path.write_text("x = 0\n\n\ndef one():\n    return x\n" if number < FILES_OF_A_PROJECT else "")


def _use(toolbox: Toolbox, name: str, **arguments: str) -> None:
    result = toolbox.execute(ToolCall(name, arguments))
    if not result.ok:
        raise RuntimeError(f"{name}: {result.text}")


def _milliseconds(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return (time.perf_counter() - started) * 1e3


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=100)
    parser.add_argument("--files", type=int, default=100_000)
    return parser.parse_args()


if __name__ == "__main__":
    main()
