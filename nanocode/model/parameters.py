"""A module's parameters as a plain nested dict of arrays, and the module that computes with others."""

from __future__ import annotations

from typing import Any, TypeVar

from flax import nnx

Module = TypeVar("Module", bound=nnx.Module)
Parameters = TypeVar("Parameters")


def as_it_is(parameters: Parameters) -> Parameters:
    """Lays nothing out: the default where a function lays parameters out over devices."""
    return parameters


def parameters_of(module: nnx.Module) -> dict[str, Any]:
    """The arrays of the parameters by attribute names, list positions as integers."""
    return nnx.to_pure_dict(nnx.state(module, nnx.Param))


def with_parameters(module: Module, parameters: Any) -> Module:
    """A module like `module` that computes with `parameters` (as `parameters_of` gives them, possibly traced)."""
    graph, state = nnx.split(module)
    nnx.replace_by_pure_dict(state, parameters)
    return nnx.merge(graph, state)
