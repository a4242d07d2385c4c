"""Decoding speed beside karpathy/nanochat's Engine: the same shapes on the same cores, in turns.

    .venv/bin/python benchmarks/decode.py --peer <checkout> --peer-python <python with torch> [--rounds 3]

Depth 4, width 256, 4 heads, vocabulary 8,192, prompt 128, 256 new tokens, greedy, float32, random weights, one row and
eight equal rows. Each round starts every program once in a process of its own: once with an empty compilation cache,
then with the one that this left. The last line is one JSON document: tokens a second behind the first token and
milliseconds to it (median and range over rounds and repeats, the compiling repeat left out), the ratios to nanochat,
seconds of the first reply with an empty and a warm compilation cache, and the share of the memory-bandwidth limit: the
bytes that a step must read (weights, and the keys and values of the tokens so far) over what these cores read in a
second, measured in the same process. Caches hold a part of the weights, so that the share can pass 1 where the last
level is large. Without ``--peer`` only our own figures are measured.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from beside import ROOT, SHAPE, own_model, parser_with_peer, run_program

REPLY = {"prompt": 128, "new": 256}  # tokens
BATCHES = (1, 8)
READ_BYTES = 1 << 28  # of the array whose reading is timed: far more than any cache holds
READ_ROUNDS = 5


def main() -> None:
    arguments = _arguments()
    settings = SHAPE | REPLY | {"repeats": arguments.repeats, "batches": BATCHES, "threads": os.cpu_count()}
    if arguments.own:
        print(json.dumps(own_decoding(settings, arguments.own)))  # noqa: T201
        return
    load_before = os.getloadavg()[0]
    runs: dict[str, list[dict[str, Any]]] = {"nanocode": [], "nanocode cold": []}
    for _ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as folder:
            own = [sys.executable, __file__, "--repeats", str(arguments.repeats), "--own", folder]
            for name, command in {"nanocode cold": own, "nanocode": own}.items():
                runs[name].append(run_program(command, None))
        if arguments.peer:
            peer = [str(arguments.peer_python), str(ROOT / "benchmarks" / "nanochat_decode.py"), json.dumps(settings)]
            runs.setdefault("nanochat", []).append(run_program(peer, arguments.peer))
        print(json.dumps({name: results[-1]["rows"] for name, results in runs.items() if results}))  # noqa: T201
    print(json.dumps(summary(settings, runs) | {"load": [load_before, os.getloadavg()[0]]}))  # noqa: T201


def own_decoding(settings: dict[str, Any], compiled: Path) -> dict[str, Any]:
    """Our engine with nanochat's model, as `benchmarks/nanochat_decode.py` measures nanochat's.

    One row goes through the live decoder too, which is what a person at a terminal waits for.
    """
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from nanocode.inference.engine import Engine
    from nanocode.training.hardware import keep_compiled

    keep_compiled(compiled)
    tokenizer = _ids_only(settings["vocab"])
    engine = Engine(_random_model(settings), tokenizer)
    prompt = np.random.default_rng(0).integers(0, settings["vocab"] - 2, settings["prompt"]).tolist()
    rows = {}
    for batch in settings["batches"]:
        runs = [_timed_chunks(engine, prompt, batch, settings["new"]) for _ in range(settings["repeats"] + 1)]
        rows[str(batch)] = _rates(runs, batch, settings["new"])
        rows[str(batch)]["step_bytes"] = _step_bytes(engine, settings, batch)
    live = [_timed_stream(engine, prompt, settings["new"]) for _ in range(settings["repeats"] + 1)]
    rows["live"] = _rates(live, 1, settings["new"]) | {"step_bytes": rows["1"]["step_bytes"]}
    return {"rows": rows, "read_bytes_per_second": read_bandwidth(settings["threads"])}


def _timed_chunks(engine: Any, prompt: list[int], batch: int, new: int) -> tuple[float, float]:
    """Seconds to the first token of a reply of one token, and seconds of a whole reply."""
    started = time.perf_counter()
    engine.generate([prompt] * batch, max_new_tokens=1)
    first = time.perf_counter() - started
    started = time.perf_counter()
    replies = engine.generate([prompt] * batch, max_new_tokens=new)
    whole = time.perf_counter() - started
    assert [len(reply) for reply in replies] == [new] * batch
    return first, whole


def _timed_stream(engine: Any, prompt: list[int], new: int) -> tuple[float, float]:
    """The same of a conversation that begins."""
    from nanocode.inference.live import LiveDecoder

    started = time.perf_counter()
    reply = LiveDecoder(engine).stream(prompt, max_new_tokens=new)
    next(reply)
    first = time.perf_counter() - started
    assert sum(1 for _ in reply) == new - 1
    return first, time.perf_counter() - started


def _rates(runs: list[tuple[float, float]], batch: int, new: int) -> dict[str, Any]:
    (_, compiling), *timed = runs
    return {
        "tokens_per_second": [batch * (new - 1) / (whole - first) for first, whole in timed],
        "first_token_seconds": [first for first, _ in timed],
        "first_reply_seconds": compiling + runs[0][0],
    }


def _step_bytes(engine: Any, settings: dict[str, Any], batch: int) -> int:
    """Bytes that one step has to read: every weight but the tables of which it reads a few rows, and the cache as it
    is on average over the reply.
    """
    import jax

    tables = settings["vocab"] * settings["width"] * 4
    value_tables = settings["depth"] // 2 * tables
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(engine.weights.leaves)) - 2 * tables - value_tables
    weights += engine.weights.head.nbytes
    held = settings["prompt"] + settings["new"] // 2
    return int(weights + batch * held * 2 * settings["depth"] * settings["width"] * 4)


def read_bandwidth(threads: int) -> float:
    """Bytes a second that all cores together read from memory, best of several."""
    from concurrent.futures import ThreadPoolExecutor

    import numpy as np

    parts = np.array_split(np.ones(READ_BYTES // 4, np.float32), threads)
    seconds = []
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(READ_ROUNDS):
            started = time.perf_counter()
            list(pool.map(np.max, parts))
            seconds.append(time.perf_counter() - started)
    return READ_BYTES / min(seconds)


def _random_model(settings: dict[str, Any]) -> Any:
    """Random in every parameter: a fresh model says the same token for ever, and its output matrices are zero."""
    model = own_model(settings)
    import jax
    from flax import nnx

    graph, state = nnx.split(model)
    keys = iter(jax.random.split(jax.random.key(1), len(jax.tree.leaves(state))))
    state = jax.tree.map(lambda leaf: leaf + 0.02 * jax.random.normal(next(keys), leaf.shape), state)
    return nnx.merge(graph, state)


def _ids_only(vocab: int) -> Any:
    """What the engine asks of a tokenizer. The stop is padding's own id, which is never said: no reply ends early."""
    from types import SimpleNamespace

    return SimpleNamespace(special={"<|assistant_end|>": vocab - 1}, pad=vocab - 1)


def summary(settings: dict[str, Any], runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Speeds of each program over its runs, and the ratios."""
    programs: dict[str, Any] = {}
    bandwidth = statistics.median(result["read_bytes_per_second"] for result in runs["nanocode"])
    for name in ("nanocode", *(["nanochat"] if "nanochat" in runs else [])):
        programs[name] = {
            rows: _over_runs([result["rows"][rows] for result in runs[name]]) for rows in runs[name][0]["rows"]
        }
    for rows, own in programs["nanocode"].items():
        batch = 1 if rows == "live" else int(rows)
        steps = own["tokens_per_second"]["median"] / batch
        own["share_of_bandwidth"] = steps * runs["nanocode"][0]["rows"][rows]["step_bytes"] / bandwidth
        cold = [result["rows"][rows]["first_reply_seconds"] for result in runs["nanocode cold"]]
        own["first_reply_seconds_cold"] = statistics.median(cold)
        if peer := programs.get("nanochat", {}).get(str(batch)):
            own["times_nanochat"] = own["tokens_per_second"]["median"] / peer["tokens_per_second"]["median"]
            first = peer["first_token_milliseconds"]["median"] / own["first_token_milliseconds"]["median"]
            own["first_token_times_nanochat"] = first
    return {"benchmark": "decode", "settings": settings, "programs": programs, "read_bytes_per_second": bandwidth}


def _over_runs(results: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "tokens_per_second": _spread([rate for result in results for rate in result["tokens_per_second"]]),
        "first_token_milliseconds": _spread(
            [1e3 * seconds for result in results for seconds in result["first_token_seconds"]]
        ),
        "first_reply_seconds": statistics.median(result["first_reply_seconds"] for result in results),
    }


def _spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "low": min(values), "high": max(values), "n": len(values)}


def _arguments() -> argparse.Namespace:
    parser = parser_with_peer(__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=3, help="timed replies of each process and batch")
    parser.add_argument("--own", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
