"""The optimizer step and the state it carries: the same for pretraining, SFT and DPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax
from flax import nnx

Model = TypeVar("Model", bound=nnx.Module)

Loss = Callable[[Any, Any], tuple[jax.Array, dict[str, jax.Array]]]
"""(model, batch) -> (scalar loss, named scalars for the log)."""


class TrainState(NamedTuple):
    """All that a resumed run needs."""

    parameters: Any
    optimizer: Any
    step: jax.Array  # () int32: optimizer steps taken


def initial_state(model: nnx.Module, optimizer: optax.GradientTransformation) -> TrainState:
    parameters = jax.tree.map(jnp.copy, nnx.to_pure_dict(nnx.state(model, nnx.Param)))  # the first step donates them
    return TrainState(parameters, optimizer.init(parameters), jnp.zeros((), jnp.int32))


def with_parameters(model: Model, parameters: Any) -> Model:
    """A model like `model` that computes with `parameters` (a pure dict, possibly traced)."""
    graph, state = nnx.split(model)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)


def make_step(
    model: nnx.Module, loss: Loss, optimizer: optax.GradientTransformation
) -> Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]]:
    """The jitted optimizer step; its state argument is donated."""

    def objective(parameters: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        return loss(with_parameters(model, parameters), batch)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        (value, named), gradients = jax.value_and_grad(objective, has_aux=True)(state.parameters, batch)
        updates, optimizer_state = optimizer.update(gradients, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, optimizer_state, state.step + 1), {"loss": value, **named}

    return jax.jit(step, donate_argnums=0)
