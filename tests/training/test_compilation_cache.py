"""A program from the compilation cache computes what a freshly compiled one computes, and nothing is said about it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Trains a tiny model in a process of its own; prints a digest of its weights and how many programs were found.
PROGRAM = """
import hashlib, sys
from pathlib import Path
import jax, numpy as np
from flax import nnx
from nanocode.config import ModelConfig, OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.training import hardware
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.step import initial_state, make_step

found = []
if len(sys.argv) > 1:
    hardware.keep_compiled(Path(sys.argv[1]))
    jax.monitoring.register_event_listener(lambda event, **named: found.append(event))
config = ModelConfig(depth=1, width=32, heads=2, context_tokens=16, tie_embeddings=True, dtype="float32")
model, optimizer = GPT(config, 64, nnx.Rngs(0)), build_optimizer(OptimizerConfig(), 4)
step = make_step(model, lambda own, rows: (language_model_loss(own, rows), {}), optimizer)
state = initial_state(model, optimizer)
for index in range(4):
    ids = np.random.default_rng(index).integers(0, 64, (2, 17)).astype(np.int32)
    state, _ = step(state, Batch(ids, np.ones_like(ids), np.zeros_like(ids)))
digest = hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state))).hexdigest()
print(digest, found.count("/jax/compilation_cache/cache_hits"))
"""


@pytest.mark.slow
def test_the_compilation_cache_changes_no_byte_and_is_silent(tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[str, int]:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=600
        )
        assert (done.returncode, done.stderr) == (0, "")
        digest, hits = done.stdout.split()
        return digest, int(hits)

    without, cold, warm = run(), run(str(tmp_path)), run(str(tmp_path))
    assert without[0] == cold[0] == warm[0]
    assert (without[1], cold[1]) == (0, 0)
    assert warm[1] > 0
