"""Layers as a loop over equal groups: the program holds one group, and compiles as fast at any depth.

What a scan over layers wants is one stacked array a parameter; what everything else wants (weights on disk, optimizer,
sharding rules) is one array a layer. So the stacks are made inside the step: a copy of the weights, for a program whose
size does not grow with the depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from nanocode.model.parameters import Module, parameters_of, with_parameters

Carried = TypeVar("Carried")


def repeated(
    group: Callable[[Carried, list[jax.Array], list[Module], list[jax.Array | None]], Carried],
    carried: Carried,
    modules: Sequence[Module],
    inputs: Sequence[jax.Array | None],
    period: int,
    gather: Callable[[Any], Any],
) -> Carried:
    """`group(carried, layers, modules, inputs)` over all layers, `period` of them at a time.

    `layers` are the traced numbers of the group's layers. Layers a period apart must be alike: modules of one
    structure, inputs of one shape or None. `gather` lays out one layer's parameters (a pytree) before they are used.
    """
    parameters = [parameters_of(module) for module in modules]
    offsets = range(period)
    numbers = jnp.arange(len(modules))
    every = [
        (numbers[offset::period], _stacked(parameters[offset::period]), _stacked(inputs[offset::period]))
        for offset in offsets
    ]

    def step(carried: Carried, layers: Any) -> tuple[Carried, None]:
        numbers, parameters, own_inputs = map(list, zip(*layers, strict=True))
        own = [with_parameters(modules[offset], gather(parameters[offset])) for offset in offsets]
        return group(carried, numbers, own, own_inputs), None

    return jax.lax.scan(step, carried, every)[0]


def _stacked(trees: Sequence[Any]) -> Any:
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
