"""Decoding with the Engine of karpathy/nanochat, for `benchmarks/decode.py`, which starts this.

    PYTHONPATH=<checkout of nanochat> <python with torch> benchmarks/nanochat_decode.py '<json settings>'

Prints one JSON line: for each number of rows, tokens a second behind the first and seconds to it, for every reply but
the first, whose seconds stand apart. nanochat is used as it is: its model, its Engine, greedy, in float32; only its
checkpoint manager, which the Engine imports for its own self-test, is left out, and with it the tokenizer library.
"""

from __future__ import annotations

import json
import os
import sys
import time
from types import ModuleType
from typing import Any

SETTINGS = json.loads(sys.argv[1])
os.environ["NANOCHAT_DTYPE"] = "float32"
sys.modules["nanochat.checkpoint_manager"] = ModuleType("nanochat.checkpoint_manager")
sys.modules["nanochat.checkpoint_manager"].load_model = None  # type: ignore[attr-defined]

import torch  # noqa: E402
from nanochat.engine import Engine  # noqa: E402
from nanochat_model import build  # noqa: E402


class _Ids:
    """What the Engine asks of a tokenizer. The ids lie outside the vocabulary, so that no reply ends early."""

    def encode_special(self, token: str) -> int:
        return int(SETTINGS["vocab"]) + len(token)

    def get_bos_token_id(self) -> int:
        return int(SETTINGS["vocab"])


def main() -> None:
    model = build(SETTINGS)
    model.eval()
    engine = Engine(model, _Ids())
    prompt = torch.randint(0, SETTINGS["vocab"], (SETTINGS["prompt"],)).tolist()
    rows = {}
    for batch in SETTINGS["batches"]:
        runs = [_timed(engine, prompt, batch) for _ in range(SETTINGS["repeats"] + 1)]
        rows[str(batch)] = {
            "tokens_per_second": [batch * (SETTINGS["new"] - 1) / (whole - first) for first, whole in runs[1:]],
            "first_token_seconds": [first for first, _ in runs[1:]],
            "first_reply_seconds": runs[0][1],
        }
    print(json.dumps({"rows": rows}))  # noqa: T201


def _timed(engine: Any, prompt: list[int], batch: int) -> tuple[float, float]:
    """Seconds to the first token and to the last."""
    started, first, made = time.perf_counter(), 0.0, 0
    for _ in engine.generate(prompt, num_samples=batch, max_tokens=SETTINGS["new"], temperature=0.0):
        made += 1
        first = first or time.perf_counter() - started
    assert made == SETTINGS["new"]
    return first, time.perf_counter() - started


if __name__ == "__main__":
    main()
