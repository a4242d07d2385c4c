"""Train a tiny model on several layouts of 8 devices; print one JSON document of what a test wants to compare."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from flax import nnx

from nanocode.config import AdamGroupConfig, ComputeConfig, ModelConfig, OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.training.batches import placed
from nanocode.training.checkpoint import Checkpointer, shapes_of
from nanocode.training.compiled import compiled_before_use
from nanocode.training.losses import Batch, language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.sharding import build_mesh, layout, on_one_device, stack_layout
from nanocode.training.step import TrainState, initial_state, make_step

STEPS, ROWS, VOCAB = 20, 16, 128
MODEL = ModelConfig(
    depth=4, width=64, heads=4, context_tokens=32, dtype="float32", value_embeddings=True, layer_scalars=True
)
LOOPED = MODEL.model_copy(update={"scan_layers": True})
# An epsilon that rounding cannot reach: nanochat's 1e-10 turns the noise of a near-zero gradient into whole steps.
_TABLES = AdamGroupConfig(lr=0.02, epsilon=1e-4)
OPTIMIZER = OptimizerConfig(
    embedding=_TABLES,
    unembedding=_TABLES,
    value_embeddings=_TABLES,
    stream_scale=_TABLES,
    embedding_scale=_TABLES,
    smear_backout=_TABLES,
)
LAYOUTS = {
    "one device": (1, ComputeConfig(), MODEL),
    "accumulated": (1, ComputeConfig(device_batch_rows=4), MODEL),
    "data": (8, ComputeConfig(), MODEL),
    "fsdp": (8, ComputeConfig(mesh_fsdp=8), MODEL),
    "fsdp, layers in a loop": (8, ComputeConfig(mesh_fsdp=8), LOOPED),
    "fsdp and tensor": (8, ComputeConfig(mesh_fsdp=2, mesh_tensor=4), MODEL),
    "all, accumulated": (8, ComputeConfig(mesh_data=2, mesh_fsdp=2, mesh_tensor=2, device_batch_rows=2), MODEL),
    "all, layers in a loop": (8, ComputeConfig(mesh_data=2, mesh_fsdp=2, mesh_tensor=2), LOOPED),
}


def batch(step: int) -> Batch:
    """One of four batches, so that there is something to learn; the rows' masks differ much in size."""
    generator = np.random.default_rng(step % 4)
    ids = np.tile(generator.integers(0, VOCAB, (ROWS, 11)), (1, 3)).astype(np.int32)
    mask = (generator.random(ids.shape) < generator.random((ROWS, 1))).astype(np.int8)
    return Batch(ids, mask, np.broadcast_to(np.arange(33) >= 20, ids.shape).astype(np.int32))


def train(
    compute: ComputeConfig, devices: int, config: ModelConfig = MODEL, steps: int = STEPS
) -> tuple[list[float], TrainState]:
    """The losses and the state after them."""
    mesh = build_mesh(layout(compute, devices), jax.devices()[:devices])
    model = GPT(config, VOCAB, nnx.Rngs(0))
    optimizer = build_optimizer(OPTIMIZER, STEPS, **stack_layout(mesh))
    state = initial_state(model, optimizer, mesh)
    loss = lambda own, batch: (language_model_loss(own, batch), {})  # noqa: E731
    step = compiled_before_use(make_step(model, loss, optimizer, mesh, compute.device_batch_rows))
    read, losses = placed(batch, mesh), []
    for index in range(steps):
        state, values = step(state, read(index))
        losses.append(float(values["loss"]))
    return losses, state


def device_share(state: TrainState) -> dict[str, float]:
    """Of the matrices and tables, and of the optimizer's arrays of that size: the part on the first device."""
    first = jax.devices()[0]

    def share(tree: object) -> float:
        large = [leaf for leaf in jax.tree.leaves(tree) if leaf.ndim >= 2 and leaf.size >= 64 * 64]
        own = [shard.data.size for leaf in large for shard in leaf.addressable_shards if shard.device == first]
        return sum(own) / sum(leaf.size for leaf in large)

    return {"parameters": share(state.parameters), "optimizer": share(state.optimizer)}


class OneCheckpoint:
    """A checkpoint store in a folder that keeps what was saved last."""

    step, details = 1, {}

    def __init__(self, root: Path) -> None:
        self.root = root

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> None:
        shutil.copytree(folder, self.root / "saved")

    def latest(self, before: int | None = None) -> OneCheckpoint:
        return self

    def restore(self, manifest: OneCheckpoint, folder: Path) -> None:
        shutil.copytree(self.root / "saved", folder)

    def prune(self, keep: int, best: str | None = None) -> None:
        pass


def is_kept_by_a_checkpoint(state: TrainState, root: Path) -> bool:
    """Whether a state comes back from a checkpoint bit for bit, and lies on the devices as it did."""
    checkpointer = Checkpointer(OneCheckpoint(root))
    checkpointer.save(1, state, lambda: "", {})
    checkpointer.wait()
    saved = checkpointer.restore(shapes_of(state))
    checkpointer.close()
    assert saved is not None
    same = jax.tree.map(
        lambda one, other: bool(np.array_equal(one, other)) and one.sharding.is_equivalent_to(other.sharding, one.ndim),
        saved.state,
        state,
    )
    return all(jax.tree.leaves(same))


def main() -> None:
    results = {}
    for name, (devices, compute, config) in LAYOUTS.items():
        losses, state = train(compute, devices, config)
        with tempfile.TemporaryDirectory() as root:
            kept = is_kept_by_a_checkpoint(state, Path(root))
        results[name] = {"losses": losses, "share": device_share(state), "kept": kept}
    mesh = build_mesh(layout(ComputeConfig(mesh_fsdp=8), 8), jax.devices())
    model, optimizer = GPT(MODEL, VOCAB, nnx.Rngs(0)), build_optimizer(OptimizerConfig(), 1)
    whole, plain = on_one_device(initial_state(model, optimizer, mesh), mesh), initial_state(model, optimizer)
    same = jax.tree.map(lambda one, other: bool(np.array_equal(one, other)), whole, plain)
    Path(sys.argv[1]).write_text(json.dumps({"results": results, "laid out and back": all(jax.tree.leaves(same))}))


if __name__ == "__main__":
    main()
