"""Muon for the matrices inside the blocks, AdamW for the rest, as Optax transformations.

Muon (Jordan et al., 2024): Nesterov momentum, then the nearest semi-orthogonal matrix, found by the Polar Express
iteration (Amsel et al., arXiv 2505.16932; coefficients as nanochat uses them). Kernels here are (in, out), torch's are
(out, in): the rate factor sqrt(max(1, out/in)) is nanochat's sqrt(max(1, rows/cols)).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from nanocode.config import OptimizerConfig
from nanocode.training.schedule import trapezoid

POLAR_EXPRESS = (
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
)


class MuonState(NamedTuple):
    momentum: optax.Updates


def orthogonalise(stack: jax.Array) -> jax.Array:
    """The nearest semi-orthogonal matrix of each (in, out) matrix in a (N, in, out) stack."""
    wide = stack.shape[-2] > stack.shape[-1]
    x = stack.swapaxes(-1, -2) if wide else stack
    x = x / (1.01 * jnp.linalg.norm(x, axis=(-2, -1), keepdims=True) + 1e-6)
    for a, b, c in POLAR_EXPRESS:
        gram = x @ x.swapaxes(-1, -2)
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.swapaxes(-1, -2) if wide else x


def scale_by_muon(momentum: float) -> optax.GradientTransformation:
    """Orthogonalised Nesterov momentum, times sqrt(max(1, out/in)). Matrices of one shape go through as one stack."""

    def init(parameters: optax.Params) -> MuonState:
        return MuonState(jax.tree.map(jnp.zeros_like, parameters))

    def update(
        gradients: optax.Updates, state: MuonState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, MuonState]:
        del parameters
        buffer = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, state.momentum, gradients)
        nesterov = jax.tree.map(lambda m, g: momentum * m + (1 - momentum) * g, buffer, gradients)
        leaves, structure = jax.tree.flatten(nesterov)
        by_shape: dict[tuple[int, ...], list[int]] = {}
        for index, leaf in enumerate(leaves):
            by_shape.setdefault(leaf.shape, []).append(index)
        for (fan_in, fan_out), indices in by_shape.items():
            stack = orthogonalise(jnp.stack([leaves[index] for index in indices]))
            for position, index in enumerate(indices):
                leaves[index] = stack[position] * max(1.0, fan_out / fan_in) ** 0.5
        return jax.tree.unflatten(structure, leaves), MuonState(buffer)

    return optax.GradientTransformation(init, update)


def label(path: tuple, leaf: jax.Array) -> str:
    """Which optimizer group a parameter belongs to, from its path: every parameter has exactly one."""
    names = [str(getattr(key, "key", getattr(key, "name", key))) for key in path]
    if names[0] == "blocks" and leaf.ndim == 2:
        return "matrix"
    if names[0] in ("embedding", "value_embeddings"):
        return "embedding"
    if names[0] == "unembedding":
        return "unembedding"
    return "scalar"


def build_optimizer(config: OptimizerConfig, steps: int, lr_factor: float = 1.0) -> optax.GradientTransformation:
    """One optimizer over the whole parameter tree. Rates are times `lr_factor` and follow the trapezoid over
    `steps`.
    """
    factor = trapezoid(steps, config.warmup_steps, config.warmdown_fraction, config.final_lr_fraction)

    def rate(base: float) -> optax.ScalarOrSchedule:
        return lambda step: -base * lr_factor * factor(step)

    def adamw(base: float) -> optax.GradientTransformation:
        return optax.chain(
            optax.scale_by_adam(config.adam_beta1, config.adam_beta2, config.adam_epsilon),
            optax.add_decayed_weights(config.adam_weight_decay),
            optax.scale_by_schedule(rate(base)),
        )

    groups = {
        "matrix": optax.chain(
            scale_by_muon(config.muon_momentum),
            optax.add_decayed_weights(config.muon_weight_decay or 0.0),
            optax.scale_by_schedule(rate(config.muon_lr)),
        ),
        "embedding": adamw(config.embedding_lr),
        "unembedding": adamw(config.unembedding_lr),
        "scalar": adamw(config.scalar_lr),
    }
    return optax.partition(groups, lambda tree: jax.tree.map_with_path(label, tree))
