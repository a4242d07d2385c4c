"""Weights that `fsdp` splits are put together where they are multiplied, and their gradients taken apart again."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec

from nanocode.model.gpt import GPT
from nanocode.model.parameters import parameters_of, with_parameters
from nanocode.training.sharding import Layout, constrain, layout_of, specification


def gathered(model: GPT, mesh: Mesh) -> GPT:
    """`model` with its weights in the layout in which they are multiplied: whole over `fsdp`, split over `tensor`.

    The matrices of blocks travel in the type of the activations, in which they are multiplied anyway: half the bytes.
    Blocks that a loop runs through are gathered one by one inside it, or all would stand whole in memory.
    """
    asked = layout_of(mesh)
    block = partial(jax.tree.map_with_path, partial(_gather, asked=asked, dtype=model.dtype))
    parameters = parameters_of(model)
    blocks = parameters.pop("blocks")
    tables = jax.tree.map_with_path(partial(_gather, asked=asked), parameters)
    model = with_parameters(model, tables | {"blocks": blocks if model.config.scan_layers else block(blocks)})
    if model.config.scan_layers:
        model.gather_block = block
    return model


def _gather(path: tuple[Any, ...], leaf: jax.Array, asked: Layout, dtype: Any = None) -> jax.Array:
    """One parameter, gathered; its gradient goes back split as the parameter is, by a reduce-scatter."""
    split = specification(path, leaf.shape, asked)
    whole = PartitionSpec(*(axis if axis == "tensor" else None for axis in split))

    @jax.custom_vjp
    def gather(x: jax.Array) -> jax.Array:
        return constrain(x, *whole)

    gather.defvjp(lambda x: (gather(x), None), lambda _, gradient: (constrain(gradient, *split),))
    return gather(leaf.astype(dtype or leaf.dtype))
