"""Muon's stacks shared out over eight devices: the difference from one device, and what the compiler made of it.

Prints one JSON document: ``difference`` (largest, of the parameters after three steps), ``products`` (the result shapes
of all matrix products a device computes) and ``collectives`` (kind and result shape of each).
"""

from __future__ import annotations

import json
import re
from typing import Any

import jax
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from nanocode.config import OptimizerConfig
from nanocode.training.optimizer import build_optimizer

CONFIG = OptimizerConfig(recipe="nanochat", muon_bfloat16=False, muon_weight_decay=0.1)
STEPS = 3
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


def tree(seed: int) -> dict[str, Any]:
    """Nine tall matrices and five wide ones: neither divides by eight."""
    rng = np.random.default_rng(seed)

    def draw(*size: int) -> np.ndarray:
        return rng.normal(size=size).astype(np.float32)

    blocks = {layer: {"mlp": {"down": draw(96, 32)}} for layer in range(9)}
    blocks |= {layer: {"mlp": {"up": draw(32, 64)}} for layer in range(9, 14)}
    return {"embedding": draw(16, 32), "blocks": blocks}


def main() -> None:
    mesh = Mesh(np.asarray(jax.devices()), ("device",))
    repeated = NamedSharding(mesh, PartitionSpec())
    shared = NamedSharding(mesh, PartitionSpec("device"))
    alone = build_optimizer(CONFIG, STEPS)
    together = build_optimizer(
        CONFIG,
        STEPS,
        stack_multiple=len(jax.devices()),
        shard_stack=lambda stack: jax.lax.with_sharding_constraint(stack, shared),
        gather_stack=lambda stack: jax.lax.with_sharding_constraint(stack, repeated),
    )
    one, _ = train(alone, SingleDeviceSharding(jax.devices()[0]))
    eight, text = train(together, repeated)
    differences = jax.tree.map(lambda a, b: float(np.abs(np.asarray(a) - np.asarray(b)).max()), one, eight)
    report = {
        "difference": max(jax.tree.leaves(differences)),
        "products": sorted(set(results(text, "dot"))),
        "collectives": sorted((kind, shape) for kind in COLLECTIVES for shape in results(text, kind)),
    }
    print(json.dumps(report))  # noqa: T201


def results(text: str, operation: str) -> list[tuple[int, ...]]:
    """The shape of the result of every such operation; a stack of one matrix is written as one matrix."""
    found = re.findall(rf"= \(?f32\[([\d,]*)\]\S* {operation}\(", text)
    shapes = [tuple(int(size) for size in sizes.split(",")) for sizes in found]
    return [(1, *shape) if len(shape) == 2 else shape for shape in shapes]


def train(optimizer: optax.GradientTransformation, place: Any) -> tuple[Any, str]:
    parameters = jax.device_put(tree(0), place)
    state = jax.jit(optimizer.init, out_shardings=place)(parameters)

    @jax.jit
    def step(parameters: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    compiled = step.lower(parameters, state, parameters).compile()
    for seed in range(1, STEPS + 1):
        parameters, state = step(parameters, state, jax.device_put(tree(seed), place))
    return parameters, compiled.as_text()


if __name__ == "__main__":
    main()
