"""CORE here and in karpathy/nanochat: the same rows, tokenizer and logits must give the same verdicts, row for row.

    .venv/bin/python benchmarks/core_parity.py --peer <checkout> --peer-python <python with torch> [--bundle FOLDER]

Without ``--bundle`` a made-up one is written first (`benchmarks/core_made_up.py`): five tasks of all three types. The
last line is one JSON document: for each task the rows, both accuracies, and how many rows differ in their examples, in
their tokens or in their verdict; exit status 1 when any does. Without ``--peer`` only our own figures are printed.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from beside import ROOT, parser_with_peer, run_program
from core_made_up import BOS, CONTEXT_TOKENS, encode, logits, write_bundle


def main() -> None:
    parser = parser_with_peer(__doc__)
    parser.add_argument("--bundle", type=Path, help="a CORE bundle; default: the made-up one")
    parser.add_argument("--examples", type=int, help="rows of each task; default: all")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="core-parity-") as scratch:
        if arguments.bundle is None:
            write_bundle(Path(scratch))
        settings, own, core = own_answers(arguments.bundle or Path(scratch), arguments.examples)
        peer = None
        if arguments.peer:
            script = str(ROOT / "benchmarks" / "nanochat_core.py")
            peer = run_program([str(arguments.peer_python), script, json.dumps(settings)], arguments.peer)
    tasks = {label: compared(rows, peer and peer[label]) for label, rows in own.items()}
    differing = sum(task.get("differing", 0) for task in tasks.values())
    print(json.dumps({"benchmark": "core_parity", "core": core, "differing_rows": differing, "tasks": tasks}))  # noqa: T201
    sys.exit(1 if differing else 0)


def own_answers(folder: Path, examples: int | None) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]], float]:
    """What the peer must know of the tasks, our answers row by row, and CORE."""
    sys.path.insert(0, str(ROOT))
    from nanocode.evaluation.core.bundle import read_bundle
    from nanocode.evaluation.core.figures import core_figures
    from nanocode.evaluation.core.prompts import examples_of, prompts_of
    from nanocode.evaluation.core.scoring import FunctionScorer

    bundle = read_bundle(folder)
    started = time.perf_counter()
    figures = core_figures(FunctionScorer(logits, encode, BOS, CONTEXT_TOKENS), bundle, examples)
    print(f"nanocode: {bundle.items(examples)} rows in {time.perf_counter() - started:.1f} s")  # noqa: T201
    answers: dict[str, list[dict[str, Any]]] = {}
    for result in figures.results:
        task, places = result.task, {id(item): place for place, item in enumerate(result.task.items)}
        answers[task.label] = [
            {
                "shown": [places[id(item)] for item in examples_of(task, index)],
                "tokens": stacked([prompt.ids for prompt in prompts_of(task, index, encode, BOS, CONTEXT_TOKENS)]),
                "right": outcome.is_right,
            }
            for index, outcome in enumerate(result.outcomes)
        ]
    fields = ("label", "kind", "shots", "delimiter")
    tasks = [{name: getattr(task, name) for name in fields} | {"file": str(task.file)} for task in bundle.tasks]
    return {"examples": examples, "tasks": tasks}, answers, figures.to_json()["core"]


def stacked(rows: list[np.ndarray]) -> str:
    """Digest of the options as nanochat feeds them: side by side, BOS behind the shorter ones."""
    ids = np.full((len(rows), max(map(len, rows))), BOS, "<i4")
    for row, own in zip(ids, rows, strict=True):
        row[: len(own)] = own
    return hashlib.sha256(ids.tobytes()).hexdigest()


def compared(own: list[dict[str, Any]], peer: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Both accuracies, and the rows in which anything differs."""
    found: dict[str, Any] = {"rows": len(own), "accuracy": sum(row["right"] for row in own) / len(own)}
    if peer is not None:
        pairs = list(zip(own, peer, strict=True))
        found["peer_accuracy"] = sum(row["right"] for row in peer) / len(peer)
        found |= {f"differing_{key}": sum(a[key] != b[key] for a, b in pairs) for key in ("shown", "tokens", "right")}
        found["differing"] = sum(a != b for a, b in pairs)
    return found


if __name__ == "__main__":
    main()
