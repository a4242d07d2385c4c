"""Train karpathy/nanochat's model on given rows, for `benchmarks/learning.py`, which starts this.

    PYTHONPATH=<checkout of nanochat> <python with torch> benchmarks/nanochat_learning.py '<json settings>'

Its model, initialisation and MuonAdamW as they are, at the rates that its pretraining script passes in and on that
script's schedules. Prints one JSON line: validation loss by step and by training second (evaluations not counted).
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator

SETTINGS = json.loads(sys.argv[1])
os.environ["NANOCHAT_DTYPE"] = "float32"

import numpy as np  # noqa: E402
import torch  # noqa: E402
from nanochat_model import build  # noqa: E402

# The values of nanochat's scripts/base_train.py at 92d63d4.
RATES = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02, "weight_decay": 0.28}
WARMUP_STEPS, WARMDOWN_FRACTION, FINAL_FRACTION = 40, 0.65, 0.05
MOMENTUM_START, MOMENTUM, MOMENTUM_END, MOMENTUM_WARMUP_STEPS = 0.85, 0.97, 0.90, 400


def main() -> None:
    rows = torch.from_numpy(np.load(SETTINGS["train"]).astype(np.int64))
    held_out = torch.from_numpy(np.load(SETTINGS["held_out"]).astype(np.int64))
    model = build(SETTINGS, SETTINGS["seed"])
    optimizer = model.setup_optimizer(**RATES)
    compiled = torch.compile(model, dynamic=False)
    seconds, curve = 0.0, []
    for step, batch in enumerate(batches(rows, SETTINGS["rows"])):
        schedule(optimizer, step, SETTINGS["steps"])
        started = time.perf_counter()
        compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()).backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        seconds += time.perf_counter() - started
        if (step + 1) % SETTINGS["every"] == 0 or step + 1 == SETTINGS["steps"]:
            curve.append({"step": step + 1, "seconds": seconds, "loss": held_out_loss(compiled, held_out)})
    print(json.dumps({"curve": curve}))  # noqa: T201


def batches(rows: torch.Tensor, size: int) -> Iterator[torch.Tensor]:
    for step in range(SETTINGS["steps"]):
        yield rows[step * size : (step + 1) * size]


def schedule(optimizer: torch.optim.Optimizer, step: int, steps: int) -> None:
    warmdown = round(WARMDOWN_FRACTION * steps)
    left = (steps - step) / warmdown
    down = left + (1 - left) * FINAL_FRACTION
    # Where warm-up and warm-down overlap, the lower of the two, as ours has it: the script would jump.
    factor = min((step + 1) / WARMUP_STEPS, 1.0, down)
    share = min(1.0, step / MOMENTUM_WARMUP_STEPS)
    momentum = MOMENTUM_START + (MOMENTUM - MOMENTUM_START) * share
    if share == 1.0 and step >= steps - warmdown:
        momentum = MOMENTUM + (MOMENTUM_END - MOMENTUM) * (1 - left)
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] * factor
        if group["kind"] == "muon":
            group["momentum"] = momentum
            group["weight_decay"] = RATES["weight_decay"] * 0.5 * (1 + math.cos(math.pi * step / steps))


@torch.no_grad()
def held_out_loss(model: torch.nn.Module, rows: torch.Tensor) -> float:
    parts = rows.split(SETTINGS["rows"])
    return sum(float(model(part[:, :-1].contiguous(), part[:, 1:].contiguous())) for part in parts) / len(parts)


if __name__ == "__main__":
    main()
