"""Muon for the matrices inside the blocks, AdamW in groups for the rest: one Optax transformation of the whole tree.

Which parameter belongs to which group is `label`; what a group's numbers are, `nanocode.training.recipes`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import optax

from nanocode.config import OptimizerConfig
from nanocode.model.parameters import as_it_is
from nanocode.training.muon import (
    NEWTON_SCHULZ,
    POLAR_EXPRESS,
    decay_weights,
    equalise_rows,
    nesterov,
    normuon,
    orthogonal,
    rescale,
    scale_by_shape,
)
from nanocode.training.recipes import AdamSettings, OptimizerSettings, resolve
from nanocode.training.schedule import Schedule, constant, half_cosine, momentum_ramp
from nanocode.training.sharding import names_of
from nanocode.training.stacks import ShardStack, over_stacks

_MATRIX = "matrix"
_GROUPS = {
    "embedding": "embedding",
    "unembedding": "unembedding",
    "value_embeddings": "value_embeddings",
    "stream_scale": "stream_scale",
    "embedding_scale": "embedding_scale",
    "smear": "smear_backout",
    "backout_strength": "smear_backout",
}
_ITERATIONS = {"polar_express": POLAR_EXPRESS, "newton_schulz": NEWTON_SCHULZ}
_REFERENCE_WIDTH = 768


def label(path: tuple[Any, ...], leaf: jax.Array) -> str:
    """The one optimizer group of a parameter, by its path: ``matrix``, or the name of a group of AdamW.

    Raises ValueError for a parameter that no group is meant for.
    """
    names = names_of(path)
    if names[0] == "blocks" and leaf.ndim >= 2:
        return _MATRIX
    if names[0] not in _GROUPS:
        raise ValueError(
            f"parameter {'.'.join(names)} {leaf.shape} belongs to no optimizer group: give it one in label"
        )
    return _GROUPS[names[0]]


def build_optimizer(
    config: OptimizerConfig,
    steps: int,
    lr_factor: float = 1.0,
    *,
    stack_multiple: int = 1,
    shard_stack: ShardStack = as_it_is,
    gather_stack: ShardStack = as_it_is,
) -> optax.GradientTransformation:
    """One optimizer over the whole parameter tree (a pure dict); its updates are to be added to the parameters.

    Rates are times `lr_factor` (the batch's) where the group says so, and follow the trapezoid over `steps`. The width
    that rates scale with is read off the embedding table. On a mesh, `stack_multiple` is the number of devices that
    share the orthogonalisation and `shard_stack` lays the first axis of a stack out over them. Where the parameters are
    repeated, `gather_stack` should repeat the results; where they are split, leave it out.
    """
    settings = resolve(config)
    over = partial(over_stacks, multiple=stack_multiple, shard_stack=shard_stack, gather_stack=gather_stack)

    def of(parameters: optax.Params) -> optax.GradientTransformation:
        width = parameters["embedding"].shape[-1]
        groups = {name: _adamw(getattr(settings, name), settings, steps, lr_factor, width) for name in _GROUPS.values()}
        groups[_MATRIX] = _muon(settings, steps, lr_factor, over)
        return optax.partition(groups, lambda tree: jax.tree.map_with_path(label, tree))

    def init(parameters: optax.Params) -> optax.OptState:
        return of(parameters).init(parameters)

    def update(
        gradients: optax.Updates, state: optax.OptState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        if parameters is None:
            raise ValueError("the optimizer needs the parameters: call update(gradients, state, parameters)")
        return of(parameters).update(gradients, state, parameters)

    return optax.GradientTransformation(init, update)


def _rate(settings: OptimizerSettings, steps: int, base: float) -> Callable[[jax.Array], jax.Array]:
    """The negative rate by step: what a direction is multiplied with."""
    factor, scaled = settings.schedule.factor(steps), base * settings.schedule.lr_scale
    return lambda step: -scaled * factor(step)


def _adamw(
    group: AdamSettings, settings: OptimizerSettings, steps: int, lr_factor: float, width: int
) -> optax.GradientTransformation:
    base = group.lr * (lr_factor if group.batch_scaled else 1.0)
    base *= (width / _REFERENCE_WIDTH) ** -0.5 if group.width_scaled else 1.0
    return optax.chain(
        optax.scale_by_adam(group.beta1, group.beta2, group.epsilon),
        optax.add_decayed_weights(group.weight_decay),
        optax.scale_by_schedule(_rate(settings, steps, base)),
    )


def _muon(
    settings: OptimizerSettings,
    steps: int,
    lr_factor: float,
    over: Callable[[optax.GradientTransformation], optax.GradientTransformation],
) -> optax.GradientTransformation:
    muon = settings.muon
    momentum = momentum_ramp(
        steps,
        muon.momentum if muon.momentum_start is None else muon.momentum_start,
        muon.momentum,
        muon.momentum if muon.momentum_end is None else muon.momentum_end,
        muon.momentum_warmup_steps,
        settings.schedule.warmdown_fraction,
    )
    direction = [
        *([equalise_rows()] if muon.equalise else []),
        orthogonal(_ITERATIONS[muon.iteration], muon.bfloat16),
        *([rescale()] if muon.rescale else []),
        *([normuon(muon.normalise_beta2)] if muon.normalise else []),
    ]
    return optax.chain(
        nesterov(momentum),
        over(optax.chain(*direction)),
        *([decay_weights(_decay(settings, steps), muon.cautious)] if muon.weight_decay else []),
        scale_by_shape(),
        optax.scale_by_schedule(_rate(settings, steps, muon.lr * lr_factor)),
    )


def _decay(settings: OptimizerSettings, steps: int) -> Schedule:
    decay = settings.muon.weight_decay
    if settings.muon.decay_schedule == "constant":
        return constant(decay)
    share = half_cosine(steps)
    return lambda step: decay * share(step)
