"""Made-up benchmarks as files: a bundle of CORE, and a file of one problem in HumanEval's columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PROBLEM = {
    "task_id": "T/0",
    "prompt": 'def one():\n    """One."""\n',
    "entry_point": "one",
    "canonical_solution": "    return 1\n",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


def write_problems(path: Path) -> Path:
    """The file of the one problem, at `path`."""
    path.write_text(json.dumps(PROBLEM) + "\n")
    return path


def write_bundle(folder: Path, tasks: Mapping[str, Sequence[Mapping[str, Any]]], shots: int) -> Path:
    """A bundle at `folder`: multiple-choice rows by task, asked after `shots` others; chance gets half."""
    (folder / "eval_data").mkdir(parents=True)
    entries = [
        {"label": label, "dataset_uri": f"{label}.jsonl", "num_fewshot": [shots], "icl_task_type": "multiple_choice"}
        for label in tasks
    ]
    (folder / "core.yaml").write_text(json.dumps({"icl_tasks": entries}))
    baselines = "".join(f"{label},50\n" for label in tasks)
    (folder / "eval_meta_data.csv").write_text(f"Eval Task,Random baseline\n{baselines}")
    for label, rows in tasks.items():
        (folder / "eval_data" / f"{label}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
