"""Speed of the SFT train step of a config on this machine: made-up rows, real model, optimizer and packing shapes.

    .venv/bin/python benchmarks/train_step.py [--config configs/nano.toml] [--steps 20] [--rounds 3]

The last line is one JSON document: tokens a second (median and range over the rounds), seconds to compile, user and
system CPU seconds a step, and the load average before and after, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
import numpy as np
from flax import nnx

from nanocode.config import Config
from nanocode.config_file import load
from nanocode.model.gpt import GPT
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.step import initial_state, make_step


def main() -> None:
    arguments = _arguments()
    settings = load(arguments.config)
    print(json.dumps(measure(settings, arguments.steps, arguments.rounds)))  # noqa: T201


def measure(settings: Config, steps: int, rounds: int) -> dict[str, Any]:
    """Time `rounds` times `steps` optimizer steps after the one that compiles."""
    load_before = os.getloadavg()[0]
    context, vocab = settings.model.context_tokens, settings.tokenizer.vocab_size
    rows = max(1, settings.sft.batch_tokens // context)
    model = GPT(settings.model, vocab, nnx.Rngs(0))
    optimizer = build_optimizer(settings.sft.optimizer, steps * rounds)
    step = make_step(model, lambda own, batch: (language_model_loss(own, batch), {}), optimizer)
    state, batch = initial_state(model, optimizer), made_up_batch(rows, context, vocab)

    started = time.perf_counter()
    state, _ = jax.block_until_ready(step(state, batch))
    compile_seconds = time.perf_counter() - started
    rates, before = [], resource.getrusage(resource.RUSAGE_SELF)
    for _ in range(rounds):
        started = time.perf_counter()
        for _ in range(steps):
            state, values = step(state, batch)
            float(values["loss"])
        rates.append(steps * rows * context / (time.perf_counter() - started))
    after = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "benchmark": "train_step",
        "parameters": model.parameter_count,
        "tokens_per_step": rows * context,
        "tokens_per_second": {"median": statistics.median(rates), "low": min(rates), "high": max(rates), "n": rounds},
        "user_seconds_per_step": (after.ru_utime - before.ru_utime) / (steps * rounds),
        "system_seconds_per_step": (after.ru_stime - before.ru_stime) / (steps * rounds),
        "compile_seconds": compile_seconds,
        "glibc_tunables": os.environ.get("GLIBC_TUNABLES", ""),
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }


def made_up_batch(rows: int, context: int, vocab: int) -> Batch:
    """Random ids, documents of about 120 tokens."""
    generator = np.random.default_rng(0)
    ids = generator.integers(0, vocab - 12, (rows, context + 1)).astype(np.int32)
    segments = np.cumsum(generator.random((rows, context + 1)) < 1 / 120, axis=1).astype(np.int32)
    return Batch(ids, np.ones_like(ids, dtype=np.int8), segments)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).resolve().parents[1] / "configs" / "nano.toml")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    return parser.parse_args()


if __name__ == "__main__":
    main()
