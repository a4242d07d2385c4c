"""How long a run takes when everything is cached, and how much of that is Metaflow's.

    .venv/bin/python benchmarks/cached_rerun.py [--config configs/nano.toml] [--store URL] [--rounds 5]

The pipeline runs once, unmeasured, to fill the store; then in turn with its empty twin: a flow of the same steps,
branches, decorators and cards whose bodies do nothing. What the pipeline takes longer is ours: imports, keys, lookups
and what cards draw. The last line is one JSON document: median, least and most seconds of both, their difference, and
the load.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from flows.environment import prepare
from nanocode.config import Config
from nanocode.config_file import load
from steps.pipeline import rollout_shards

ROOT = Path(__file__).resolve().parents[1]
FLOW = ROOT / "flows" / "full_pipeline.py"


def empty_twin(source: str, settings: Config) -> str:
    """A flow like the one in `source` with nothing in its steps: the source itself, bodies replaced."""
    branches = {"sources": len(settings.data.sources), "rollout_shards": len(rollout_shards(settings))}
    tree = ast.parse(source)
    (flow,) = (node for node in tree.body if isinstance(node, ast.ClassDef))
    steps = [node for node in flow.body if isinstance(node, ast.FunctionDef) and _decorated(node, "step")]
    for step in steps:
        step.decorator_list = [each for each in step.decorator_list if not _names(each, "stage")]
        successor = [line for line in step.body if ast.unparse(line).startswith("self.next(")]
        lists = [ast.parse(f"self.{name} = list(range({count}))").body[0] for name, count in branches.items()]
        step.body = [*(lists if step.name == "start" else []), *(successor or [ast.Pass()])]
        if step.name == "fit_tokenizer":
            step.body.insert(0, lists[-1])  # a join hands nothing on
    flow.body = list(steps)
    header = [ast.parse("from metaflow import FlowSpec, card, retry, step").body[0]]
    footer = [ast.parse(f"if __name__ == '__main__':\n    {flow.name}()").body[0]]
    return ast.unparse(ast.Module([*header, flow, *footer], []))


def main() -> None:
    arguments = _arguments()
    environment = os.environ | ({"NANOCODE_STORE": arguments.store} if arguments.store else {})
    pipeline = [sys.executable, str(FLOW), "--config", "config", str(arguments.config.resolve()), "run"]
    with tempfile.TemporaryDirectory() as folder:
        twin = Path(folder, "twin.py")
        twin.write_text(empty_twin(FLOW.read_text(encoding="utf-8"), load(arguments.config)), encoding="utf-8")
        runs = {"pipeline": pipeline, "metaflow": [sys.executable, str(twin), "run"]}
        _seconds(pipeline, environment, ROOT)
        own_environment = dict(environment)
        prepare(own_environment, ["run"], Path(folder), os.getpid())  # in S3 too, when the pipeline is
        found: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(arguments.rounds):
            found["pipeline"].append(_seconds(pipeline, environment, ROOT))
            found["metaflow"].append(_seconds(runs["metaflow"], own_environment, Path(folder)))
    shown = {
        name: {"median": round(statistics.median(each), 2), "least": round(min(each), 2), "most": round(max(each), 2)}
        for name, each in found.items()
    }
    own = statistics.median(ours - theirs for ours, theirs in zip(*found.values(), strict=True))
    result = {"benchmark": "cached_rerun", "config": arguments.config.name, "rounds": arguments.rounds, **shown}
    print(json.dumps(result | {"own_seconds": round(own, 2), "load": os.getloadavg()[0]}))  # noqa: T201


def _seconds(command: list[str], environment: dict[str, str], folder: Path) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stdout[-2_000:]}{done.stderr[-2_000:]}")
    return time.perf_counter() - started


def _decorated(function: ast.FunctionDef, name: str) -> bool:
    return any(_names(each, name) for each in function.decorator_list)


def _names(decorator: ast.expr, name: str) -> bool:
    return isinstance(decorator, ast.Name) and decorator.id == name


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=ROOT / "configs" / "nano.toml")
    parser.add_argument("--store", help="as for NANOCODE_STORE; default: that, or the config's")
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
