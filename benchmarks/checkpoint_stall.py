"""How long a checkpoint holds up training: step times with saves in the background against step times without.

    .venv/bin/python benchmarks/checkpoint_stall.py [--config configs/nano.toml] [--steps 60] [--every 10]

Real model and optimizer, made-up rows, and a stage's own store that commits as slowly as asked (`--store-seconds`). The
last line is one JSON document: the median step, how long the training thread was kept by a save (median and worst),
what the steps during a save took, the seconds that a save needs in the background, the state's size, and the load.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import jax
from flax import nnx
from train_step import made_up_batch

from artifacts.checkpoints import CheckpointStore, Manifest
from artifacts.store import open_store
from nanocode.config import Config
from nanocode.config_file import load
from nanocode.model.gpt import GPT
from nanocode.training.checkpoint import Checkpointer
from nanocode.training.losses import language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.step import initial_state, make_step


class SlowStore(CheckpointStore):
    """The store of a stage, which takes its time over a commit."""

    def __init__(self, folder: Path, seconds: float) -> None:
        super().__init__(open_store(f"file:{folder}", folder), "0" * 64)
        self._seconds = seconds
        self.written: list[float] = []

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> Manifest:
        time.sleep(self._seconds)
        manifest = super().save(step, folder, details)
        self.written.append(time.perf_counter())
        return manifest


def main() -> None:
    arguments = _arguments()
    settings = load(arguments.config)
    print(json.dumps(measure(settings, arguments.steps, arguments.every, arguments.store_seconds)))  # noqa: T201


def measure(settings: Config, steps: int, every: int, store_seconds: float) -> dict[str, Any]:
    """Take `steps` steps and save after each `every`-th, if the save before is done."""
    load_before = os.getloadavg()[0]
    context, vocab = settings.model.context_tokens, settings.tokenizer.vocab_size
    model = GPT(settings.model, vocab, nnx.Rngs(0))
    optimizer = build_optimizer(settings.sft.optimizer, steps + 1)
    step = make_step(model, lambda own, batch: (language_model_loss(own, batch), {}), optimizer)
    state, batch = (
        initial_state(model, optimizer),
        made_up_batch(max(1, settings.sft.batch_tokens // context), context, vocab),
    )
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    state, values = step(state, batch)
    jax.block_until_ready(values)
    quiet, saving, stalls, background = [], [], [], []
    with tempfile.TemporaryDirectory(prefix="nanocode-stall-") as root:
        store = SlowStore(Path(root), store_seconds)
        checkpointer = Checkpointer(store)
        checkpointer.save(0, state, lambda: "", {})  # compiles the copy, opens Orbax
        checkpointer.close()
        checkpointer = Checkpointer(store)
        for index in range(1, steps + 1):
            was_busy, started = checkpointer.busy, time.perf_counter()
            state, values = step(state, batch)
            float(values["loss"])
            (saving if was_busy else quiet).append(time.perf_counter() - started)
            if index % every == 0 and not checkpointer.busy:
                started = time.perf_counter()
                checkpointer.save(index, state, lambda: "", {})
                stalls.append(time.perf_counter() - started)
                background.append(started)
        checkpointer.close()
        background = [end - start for start, end in zip(background, store.written[1:], strict=True)]
    return {
        "benchmark": "checkpoint_stall",
        "state_bytes": size,
        "saves": len(stalls),
        "step_seconds": statistics.median(quiet),
        "stall_seconds": {"median": statistics.median(stalls), "worst": max(stalls)},
        "stall_steps": max(stalls) / statistics.median(quiet),
        "step_seconds_during_a_save": statistics.median(saving) if saving else None,
        "background_seconds": statistics.median(background),
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "load": [load_before, os.getloadavg()[0]],
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).resolve().parents[1] / "configs" / "nano.toml")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--every", type=int, default=10)
    parser.add_argument("--store-seconds", type=float, default=0.0, help="how long the store takes over a commit")
    return parser.parse_args()


if __name__ == "__main__":
    main()
