"""Training speed and memory beside karpathy/nanochat: the same shapes on the same cores, in turns.

    .venv/bin/python benchmarks/versus_nanochat.py --peer <checkout> --peer-python <python with torch> [--rounds 3]

Depth 4, width 256, 4 heads, vocabulary 8,192, context 512, 8 rows, random ids, optimizer included. Each round starts
every program once in a process of its own. The last line is one JSON document: tokens a second of each (median and
range over the rounds' medians), the ratio to nanochat compiled in float32, seconds of the first step, peak memory,
threads and load; of ours also the model's FLOPs as a share of these cores' best rate in a large product. Without
``--peer`` only our own figures are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from typing import Any

from beside import ROOT, SHAPE, own_model, parser_with_peer, run_program

ROWS = 8
PEERS = {
    "nanochat float32 compiled": {"dtype": "float32", "compiled": True},
    "nanochat float32": {"dtype": "float32", "compiled": False},
    "nanochat bfloat16 compiled": {"dtype": "bfloat16", "compiled": True},
}
REFERENCE = "nanochat float32 compiled"


def main() -> None:
    arguments = _arguments()
    settings = SHAPE | {"rows": ROWS, "steps": arguments.steps, "threads": os.cpu_count()}
    if arguments.own_step:
        print(json.dumps(own_step(settings)))  # noqa: T201
        return
    commands = {"nanocode": [sys.executable, __file__, "--own-step", "--steps", str(arguments.steps)]}
    if arguments.peer:
        peer = [str(arguments.peer_python), str(ROOT / "benchmarks" / "nanochat_step.py")]
        names = [REFERENCE, *arguments.also]
        commands |= {name: [*peer, json.dumps(settings | PEERS[name])] for name in names}
    load_before, runs = os.getloadavg()[0], {name: [] for name in commands}
    for _ in range(arguments.rounds):
        for name, command in commands.items():
            runs[name].append(run_program(command, arguments.peer))
            print(f"{name}: {_tokens(settings) / statistics.median(runs[name][-1]['step_seconds']):,.0f} tokens/s")  # noqa: T201
    print(json.dumps(summary(settings, runs) | {"load": [load_before, os.getloadavg()[0]]}))  # noqa: T201


def own_step(settings: dict[str, Any]) -> dict[str, Any]:
    """Our train step with nanochat's model and optimizer, as `benchmarks/nanochat_step.py` measures nanochat's."""
    model = own_model(settings)
    import numpy as np

    from nanocode.config import OptimizerConfig
    from nanocode.training.compiled import compiled_before_use
    from nanocode.training.hardware import measured_flops
    from nanocode.training.losses import Batch, language_model_loss
    from nanocode.training.optimizer import build_optimizer
    from nanocode.training.step import initial_state, make_step

    optimizer = build_optimizer(OptimizerConfig(recipe="nanochat", muon_bfloat16=False), 10_000)
    step = compiled_before_use(make_step(model, lambda own, batch: (language_model_loss(own, batch), {}), optimizer))
    state, seconds, losses = initial_state(model, optimizer), [], []
    for index in range(settings["steps"] + 1):
        shape = (settings["rows"], settings["context"] + 1)
        ids = np.random.default_rng(index).integers(0, settings["vocab"], shape).astype(np.int32)
        started = time.perf_counter()
        state, values = step(state, Batch(ids, np.ones(shape, np.int8), np.zeros(shape, np.int32)))
        losses.append(float(values["loss"]))
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"first_step_seconds": seconds[0], "step_seconds": seconds[1:], "peak_rss_bytes": peak, "losses": losses}
    rate = _tokens(settings) / statistics.median(seconds[1:])
    return result | {"matmul_ceiling_share": rate * model.shape.flops_per_token / measured_flops("float32")}


def summary(settings: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Tokens a second and the rest of each program over its runs."""
    programs = {}
    for name, results in runs.items():
        rates = [_tokens(settings) / statistics.median(result["step_seconds"]) for result in results]
        programs[name] = {
            "tokens_per_second": {"median": statistics.median(rates), "low": min(rates), "high": max(rates)},
            "first_step_seconds": statistics.median(result["first_step_seconds"] for result in results),
            "peak_rss_bytes": statistics.median(result["peak_rss_bytes"] for result in results),
            "last_loss": results[-1]["losses"][-1],
            "n": len(results),
        }
        shares = [result["matmul_ceiling_share"] for result in results if "matmul_ceiling_share" in result]
        programs[name] |= {"matmul_ceiling_share": statistics.median(shares)} if shares else {}
    reference = programs.get(REFERENCE)
    if reference:
        for program in programs.values():
            program["ratio"] = program["tokens_per_second"]["median"] / reference["tokens_per_second"]["median"]
    return {"benchmark": "versus_nanochat", "settings": settings, "programs": programs}


def _tokens(settings: dict[str, Any]) -> int:
    return int(settings["rows"] * settings["context"])


def _arguments() -> argparse.Namespace:
    parser = parser_with_peer(__doc__)
    parser.add_argument("--also", action="append", default=[], choices=[name for name in PEERS if name != REFERENCE])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=15, help="timed steps of each process")
    parser.add_argument("--own-step", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
