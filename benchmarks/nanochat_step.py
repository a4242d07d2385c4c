"""The train step of karpathy/nanochat on made-up rows, for `benchmarks/versus_nanochat.py`, which starts this.

    PYTHONPATH=<checkout of nanochat> <python with torch> benchmarks/nanochat_step.py '<json settings>'

Prints one JSON line: the seconds of the first step (with compilation), of each later step, peak memory and losses.
nanochat is used as it is: its model, its initialisation, its MuonAdamW at its default rates.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time

SETTINGS = json.loads(sys.argv[1])
os.environ["NANOCHAT_DTYPE"] = SETTINGS["dtype"]

import numpy as np  # noqa: E402
import torch  # noqa: E402
from nanochat_model import build  # noqa: E402


def main() -> None:
    model = build(SETTINGS)
    optimizer = model.setup_optimizer()
    if SETTINGS["compiled"]:
        model = torch.compile(model, dynamic=False)
    seconds, losses = [], []
    for step in range(SETTINGS["steps"] + 1):
        ids = np.random.default_rng(step).integers(
            0, SETTINGS["vocab"], (SETTINGS["rows"], SETTINGS["context"] + 1), dtype=np.int64
        )
        rows = torch.from_numpy(ids)
        started = time.perf_counter()
        loss = model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous())
        loss.backward()
        optimizer.step()
        model.zero_grad(set_to_none=True)
        losses.append(float(loss.detach()))
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    result = {"first_step_seconds": seconds[0], "step_seconds": seconds[1:], "peak_rss_bytes": peak, "losses": losses}
    print(json.dumps(result))  # noqa: T201


if __name__ == "__main__":
    main()
