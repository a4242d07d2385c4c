"""Weights that `fsdp` splits are put together where they are multiplied, and their gradients taken apart again."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from nanocode.model.gpt import GPT
from nanocode.model.parameters import Module, parameters_of, with_parameters
from nanocode.training.sharding import Layout, constrain, layout_of, specification


def gathered(model: Module, mesh: Mesh) -> Module:
    """`model` with its weights in the layout in which they are multiplied: whole over `fsdp`, split over `tensor`.

    Blocks that a loop runs through are gathered one by one inside it, or all would stand whole in memory.
    """
    asked = layout_of(mesh)
    whole = partial(jax.tree.map_with_path, lambda path, leaf: _gather(path, leaf, asked))
    parameters = parameters_of(model)
    if not (isinstance(model, GPT) and model.config.scan_layers):
        return with_parameters(model, whole(parameters))
    outside = {name: part for name, part in parameters.items() if name != "blocks"}
    model = with_parameters(model, parameters | whole(outside))
    model.gather_block = whole
    return model


def _gather(path: tuple[Any, ...], leaf: jax.Array, asked: Layout) -> jax.Array:
    """One parameter, gathered; its gradient goes back split as the parameter is, by a reduce-scatter."""
    split = specification(path, leaf.shape, asked)
    whole = PartitionSpec(*(axis if axis == "tensor" else None for axis in split))

    @jax.custom_vjp
    def gather(x: jax.Array) -> jax.Array:
        return constrain(x, *whole)

    gather.defvjp(lambda x: (gather(x), None), lambda _, gradient: (constrain(gradient, *split),))
    return gather(leaf)
