"""What is learnt beside karpathy/nanochat: held-out bits per byte after equal tokens, and after equal seconds.

    .venv/bin/python benchmarks/learning.py --peer <checkout> --peer-python <its python> [--steps 150] [--seeds 2]

Both read the same rows in the same order: this interpreter's standard library, cut by one tokenizer of 8,192. Depth 4,
width 256, 4 heads, context 512, 8 rows a step, float32, nanochat's recipe on either side. For each seed nanochat trains
``--steps``, then we train as many (equal tokens), then as many as fit into nanochat's seconds, compiling included
(equal time). Evaluations are not counted; what was compiled is kept by either from run to run. The last line is one
JSON document with every curve. Without ``--peer`` only our own curve is measured.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

from beside import ROOT, SHAPE, own_model, parser_with_peer, run_program

ROWS = 8
HELD_OUT_ROWS = 64
EVALUATIONS = 6  # a run


def main() -> None:
    arguments = _arguments()
    if arguments.own:
        print(json.dumps({"curve": own_curve(json.loads(arguments.own))}))  # noqa: T201
        return
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        data = prepare(Path(name), 2 * arguments.steps)  # room for a run of twice as many steps
        runs = [one_seed(seed, arguments, data) for seed in range(arguments.seeds)]
    document = summary(runs) | {"settings": SHAPE | {"rows": ROWS, "steps": arguments.steps}, "threads": os.cpu_count()}
    print(json.dumps(document | {"load": [load_before, os.getloadavg()[0]]}))  # noqa: T201


def prepare(folder: Path, steps: int) -> dict[str, Any]:
    """Rows of ids to train on and to be held out, and the bytes that a held-out token stands for on average."""
    sys.path.insert(0, str(ROOT))
    import numpy as np

    from nanocode.tokenizer import Tokenizer

    needed, row_tokens = steps * ROWS + HELD_OUT_ROWS, SHAPE["context"] + 1
    paths = sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py"))
    np.random.default_rng(0).shuffle(paths)  # type: ignore[arg-type]
    texts = [text for path in paths if (text := path.read_text(encoding="utf-8", errors="ignore"))]
    tokenizer = Tokenizer.train(texts[:400], SHAPE["vocab"], os.cpu_count() or 1)
    ids: list[int] = []
    for text in texts:
        if len(ids) >= needed * row_tokens:
            break
        ids += [tokenizer.bos, *tokenizer.encode(text)]
    rows = np.array(ids[: len(ids) // row_tokens * row_tokens], np.uint16).reshape(-1, row_tokens)
    if len(rows) < needed:
        raise SystemExit(f"the standard library gives {len(rows)} rows, {steps} steps need {needed}: lower --steps")
    held_out = rows[:HELD_OUT_ROWS]
    spelled = sum(len(tokenizer.decode(row[1:].tolist()).encode()) for row in held_out)
    np.save(folder / "train.npy", rows[HELD_OUT_ROWS:])
    np.save(folder / "held_out.npy", held_out)
    paths_of = {"train": str(folder / "train.npy"), "held_out": str(folder / "held_out.npy")}
    return paths_of | {"bytes_per_token": spelled / (HELD_OUT_ROWS * SHAPE["context"])}


def one_seed(seed: int, arguments: argparse.Namespace, data: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """The curves of one seed, in bits per byte."""

    def settings(steps: int) -> str:
        every = max(1, math.ceil(steps / EVALUATIONS))
        own = {"rows": ROWS, "seed": seed, "steps": steps, "every": every, "threads": os.cpu_count()}
        return json.dumps(SHAPE | own | {name: data[name] for name in ("train", "held_out")})

    def curve(name: str, command: list[str]) -> list[dict[str, float]]:
        points = run_program(command, arguments.peer)["curve"]
        for point in points:
            point["bits_per_byte"] = point.pop("loss") / math.log(2) / data["bytes_per_token"]
        last = points[-1]
        print(  # noqa: T201
            f"seed {seed}, {name}: {last['bits_per_byte']:.4f} after {last['step']} steps, {last['seconds']:.0f} s"
        )
        return points

    own_program = [sys.executable, __file__, "--own"]
    if not arguments.peer:
        return {"nanocode": curve("nanocode", [*own_program, settings(arguments.steps)])}
    peer_program = [str(arguments.peer_python), str(ROOT / "benchmarks" / "nanochat_learning.py")]
    peer = curve("nanochat", [*peer_program, settings(arguments.steps)])
    equal_tokens = curve("nanocode, equal tokens", [*own_program, settings(arguments.steps)])
    first, last = equal_tokens[0], equal_tokens[-1]
    a_step = (last["seconds"] - first["seconds"]) / (last["step"] - first["step"])
    steps = arguments.steps + int((peer[-1]["seconds"] - last["seconds"]) / a_step)
    if not 0 < steps <= 2 * arguments.steps:
        raise SystemExit(f"equal time would be {steps} steps: no comparison, the machine is too uneven")
    equal_time = curve("nanocode, equal time", [*own_program, settings(steps)])
    return {"nanochat": peer, "nanocode, equal tokens": equal_tokens, "nanocode, equal time": equal_time}


def own_curve(settings: dict[str, Any]) -> list[dict[str, float]]:
    """Our model under nanochat's recipe, as `benchmarks/nanochat_learning.py` trains nanochat's."""
    model = own_model(settings, settings["seed"])
    import jax
    import numpy as np

    from nanocode.config import OptimizerConfig
    from nanocode.model.parameters import with_parameters
    from nanocode.training.compiled import compiled_before_use
    from nanocode.training.hardware import keep_compiled
    from nanocode.training.losses import Batch, language_model_loss
    from nanocode.training.optimizer import build_optimizer
    from nanocode.training.step import initial_state, make_step

    keep_compiled(ROOT / ".nanocode" / "xla")
    recipe = OptimizerConfig(recipe="nanochat", muon_bfloat16=False, muon_weight_decay=0.28)
    optimizer = build_optimizer(recipe, settings["steps"])
    step = compiled_before_use(make_step(model, lambda own, batch: (language_model_loss(own, batch), {}), optimizer))
    judge = jax.jit(lambda parameters, batch: language_model_loss(with_parameters(model, parameters), batch))

    def batch_of(rows: np.ndarray) -> Batch:
        return Batch(rows.astype(np.int32), np.ones(rows.shape, np.int8), np.zeros(rows.shape, np.int32))

    rows, held_out = np.load(settings["train"]), np.load(settings["held_out"])
    parts = [batch_of(part) for part in np.split(held_out, len(held_out) // settings["rows"])]
    state, seconds, curve = initial_state(model, optimizer), 0.0, []
    for number in range(1, settings["steps"] + 1):
        batch = batch_of(rows[(number - 1) * settings["rows"] : number * settings["rows"]])
        started = time.perf_counter()
        state, values = step(state, batch)
        float(values["loss"])
        seconds += time.perf_counter() - started
        if number % settings["every"] == 0 or number == settings["steps"]:
            loss = statistics.fmean(float(judge(state.parameters, part)) for part in parts)
            curve.append({"step": number, "seconds": seconds, "loss": loss})
    return curve


def summary(runs: list[dict[str, list[dict[str, float]]]]) -> dict[str, Any]:
    """The last point of every curve, and by how much we end below nanochat of the same seed (negative: above)."""
    ends = [{name: curve[-1] for name, curve in run.items()} for run in runs]
    document: dict[str, Any] = {"benchmark": "learning", "n": len(runs), "ends": ends, "curves": runs}
    if "nanochat" in runs[0]:
        document["bits_per_byte_below_nanochat"] = {
            name: [round(end["nanochat"]["bits_per_byte"] - end[name]["bits_per_byte"], 4) for end in ends]
            for name in runs[0]
            if name != "nanochat"
        }
    return document


def _arguments() -> argparse.Namespace:
    parser = parser_with_peer(__doc__)
    parser.add_argument("--steps", type=int, default=150, help="of nanochat, and of ours at equal tokens")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--own", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    main()
