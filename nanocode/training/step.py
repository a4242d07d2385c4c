"""The optimizer step and the state it carries: the same for pretraining, SFT and DPO, on one device and on many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from nanocode.model.gpt import GPT
from nanocode.model.parameters import parameters_of, with_parameters
from nanocode.training.accumulation import accumulated, part_count
from nanocode.training.gathering import gathered
from nanocode.training.sharding import layout_of, put, shardings

Loss = Callable[[Any, Any], tuple[jax.Array, dict[str, jax.Array]]]
"""(model, batch) -> (scalar loss, named scalars for the log): means over the batch's targets, or over its pairs."""

Step = Callable[["TrainState", Any], tuple["TrainState", dict[str, jax.Array]]]
"""(state, batch) -> (the state after it, "loss" and the loss's named scalars)."""


class TrainState(NamedTuple):
    """All that a resumed run needs."""

    parameters: Any
    optimizer: Any
    step: jax.Array  # () int32: optimizer steps taken


def initial_state(model: nnx.Module, optimizer: optax.GradientTransformation, mesh: Mesh | None = None) -> TrainState:
    """The model's parameters and a fresh optimizer state, laid out over the mesh if there is one."""
    parameters = jax.tree.map(jnp.copy, parameters_of(model))  # the first step donates them
    if mesh is None:
        return _fresh(parameters, optimizer)
    places = shardings(mesh, jax.eval_shape(lambda own: _fresh(own, optimizer), parameters))
    parameters = put(parameters, places.parameters)
    return jax.jit(lambda own: _fresh(own, optimizer), out_shardings=places, donate_argnums=0)(parameters)


def abstract_state(model: nnx.Module, optimizer: optax.GradientTransformation, mesh: Mesh | None = None) -> TrainState:
    """The shapes and shardings of `initial_state`: what compiling a step ahead of time needs, with no array made."""
    state = jax.eval_shape(lambda own: _fresh(own, optimizer), parameters_of(model))
    if mesh is None:
        return state
    return jax.tree.map(
        lambda leaf, place: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), state, shardings(mesh, state)
    )


def _fresh(parameters: Any, optimizer: optax.GradientTransformation) -> TrainState:
    return TrainState(parameters, optimizer.init(parameters), jnp.zeros((), jnp.int32))


def make_step(
    model: GPT,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    mesh: Mesh | None = None,
    device_batch_rows: int | None = None,
) -> Step:
    """The jitted optimizer step; its state argument is donated.

    On a mesh the state keeps the layout of `initial_state`, and what runs inside (attention kernels, the optimizer)
    finds the mesh with `jax.sharding.get_abstract_mesh()`. Of a batch, a device computes `device_batch_rows` rows at
    once. Tracing raises ConfigError for a batch that does not divide over the mesh.
    """
    places = None if mesh is None else shardings(mesh, abstract_state(model, optimizer))

    def objective(parameters: Any, batch: Any) -> tuple[jax.Array, dict[str, jax.Array]]:
        own = with_parameters(model, parameters)
        if mesh is not None:  # else the compiler moves activations to the weights, the larger of the two
            own = gathered(own, mesh)
        return loss(own, batch)

    def gradients(parameters: Any, batch: Any) -> Any:
        values, found = jax.value_and_grad(objective, has_aux=True)(parameters, batch)
        return values, found if places is None else jax.lax.with_sharding_constraint(found, places.parameters)

    def step(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        whole = mesh is None and device_batch_rows is None
        parts = 1 if whole else part_count(batch, layout_of(mesh), device_batch_rows)
        (value, named), found = accumulated(gradients, parts)(state.parameters, batch)
        updates, optimizer_state = optimizer.update(found, state.optimizer, state.parameters)
        parameters = optax.apply_updates(state.parameters, updates)
        return TrainState(parameters, optimizer_state, state.step + 1), {"loss": value, **named}

    if mesh is None:
        return jax.jit(step, donate_argnums=0)

    def on_mesh(state: TrainState, batch: Any) -> tuple[TrainState, dict[str, jax.Array]]:
        with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
            return step(state, batch)

    return jax.jit(on_mesh, donate_argnums=0, out_shardings=(places, None))
