"""One mesh for every accelerator: which device holds which part of the weights, the optimizer state and the batch.

Axes: `data` splits the rows and repeats the weights; `fsdp` splits the rows and the weights (ZeRO-3, Rajbhandari et al.
2020); `tensor` splits each matrix product as Megatron does (Shoeybi et al. 2019): query, key, value and up by their
outputs, output and down by their inputs, so that one reduction a sublayer puts the parts together. The compiler (GSPMD,
Xu et al. 2021) adds the collectives. A mesh of one device is no mesh at all: `build_mesh` gives None, and everything
runs as it does on one device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from nanocode.config import ComputeConfig, ConfigError
from nanocode.model.depth import Shape
from nanocode.model.parameters import as_it_is

AXES = ("data", "fsdp", "tensor")
ROWS = ("data", "fsdp")
"""The axes over which the rows of a batch are split."""

# Of the last two axes of a parameter, by its name; axes before them (a stack of layers or tables) are never split.
_RULES: tuple[tuple[str, tuple[str, str]], ...] = (
    (r"query|key|value|up", ("fsdp", "tensor")),
    (r"output|down", ("tensor", "fsdp")),
    (r"embedding|unembedding|value_embeddings", ("tensor", "fsdp")),
)


@dataclass(frozen=True)
class Layout:
    """How many devices each axis of the mesh has."""

    data: int
    fsdp: int
    tensor: int

    @property
    def devices(self) -> int:
        return self.data * self.fsdp * self.tensor

    @property
    def row_shards(self) -> int:
        """Into how many parts the rows of a batch are split."""
        return self.data * self.fsdp

    def __str__(self) -> str:
        return f"mesh_data {self.data} x mesh_fsdp {self.fsdp} x mesh_tensor {self.tensor}"


def layout(compute: ComputeConfig, devices: int) -> Layout:
    """The mesh that the config asks for on so many devices. Raises ConfigError when it needs more than there are."""
    inner = compute.mesh_fsdp * compute.mesh_tensor
    asked = Layout(compute.mesh_data or max(1, devices // inner), compute.mesh_fsdp, compute.mesh_tensor)
    if asked.devices > devices:
        raise ConfigError(
            f"compute: {asked} needs {asked.devices} devices and there are {devices}: "
            "lower mesh_data, mesh_fsdp or mesh_tensor"
        )
    if compute.mesh_data is None and devices % inner:
        raise ConfigError(
            f"compute: {devices} devices do not divide by mesh_fsdp {asked.fsdp} x mesh_tensor {asked.tensor}: "
            "change these, or set mesh_data to leave devices out"
        )
    return asked


def build_mesh(asked: Layout, devices: Sequence[Any]) -> Mesh | None:
    """The mesh to train on; None for one device.

    Raises ConfigError when several processes are at work and some device would be left out.
    """
    if asked.devices == 1 and len({device.process_index for device in devices}) == 1:
        return None
    if asked.devices < len(devices) and len({device.process_index for device in devices}) > 1:
        raise ConfigError(
            f"compute: {asked} leaves out {len(devices) - asked.devices} of {len(devices)} devices, and with several "
            "processes each must take part: raise mesh_data"
        )
    return mesh_over(asked, devices)


def mesh_over(asked: Layout, devices: Sequence[Any]) -> Mesh:
    """The mesh over the first devices of an accelerator, neighbours on the inner axes; of one device too."""
    shape = (asked.data, asked.fsdp, asked.tensor)
    grid = mesh_utils.create_device_mesh(shape, list(devices)[: asked.devices], allow_split_physical_axes=True)
    return Mesh(grid, AXES, axis_types=(AxisType.Auto,) * len(AXES))


def layout_of(mesh: Mesh | None) -> Layout:
    return Layout(*mesh.devices.shape) if mesh is not None else Layout(1, 1, 1)


def check_shape(asked: Layout, shape: Shape) -> None:
    """Raise ConfigError for a model that the tensor axis cannot split into whole heads."""
    for name, heads in (("heads", shape.heads), ("key-value heads", getattr(shape, "kv_heads", shape.heads))):
        if heads % asked.tensor:
            raise ConfigError(
                f"compute.mesh_tensor {asked.tensor} does not divide the {heads} {name} of the model: "
                "change mesh_tensor or model.heads"
            )


def check_rows(asked: Layout, rows: int, what: str = "rows") -> None:
    """Raise ConfigError for a batch that the mesh cannot split evenly."""
    if rows % asked.row_shards:
        raise ConfigError(
            f"a batch of {rows} {what} does not divide over {asked.row_shards} devices (compute.mesh_data "
            f"{asked.data} x mesh_fsdp {asked.fsdp}): change the stage's batch or the mesh"
        )


def fewest_parts(rows: int, limit: int | None) -> int:
    """Into how many equal parts a device's rows are cut, so that none is larger than `limit`."""
    most = max(1, limit or rows)
    return next(parts for parts in range(1, rows + 1) if rows % parts == 0 and rows // parts <= most)


def specification(path: tuple[Any, ...], shape: Sequence[int], asked: Layout) -> PartitionSpec:
    """Which axis of the mesh splits which axis of a parameter. What does not divide, vectors and gates are repeated."""
    name = names_of(path)[-1] if path else ""
    for pattern, axes in _RULES:
        if len(shape) >= 2 and re.fullmatch(pattern, name):
            split = [
                axis if size % getattr(asked, axis) == 0 else None for axis, size in zip(axes, shape[-2:], strict=True)
            ]
            return PartitionSpec(*[None] * (len(shape) - 2), *split)
    return PartitionSpec()


def shardings(mesh: Mesh, state: Any) -> Any:
    """A NamedSharding for each array of a TrainState (or its shapes): optimizer state lies where its parameter lies.

    An optimizer's array belongs to the parameter whose path ends its own. Where their shapes differ (factored moments),
    an axis of equal size is split alike. What belongs to no parameter but is a stack (Muon's state, one stack a shape)
    is shared out by whole matrices over all devices.
    """
    asked = layout_of(mesh)
    own = {names_of(path): leaf for path, leaf in jax.tree.leaves_with_path(state.parameters)}
    specifications = {
        names_of(path): specification(path, leaf.shape, asked)
        for path, leaf in jax.tree.leaves_with_path(state.parameters)
    }

    def place(path: tuple[Any, ...], leaf: Any) -> NamedSharding:
        names = names_of(path)
        owner = next((names[first:] for first in range(len(names)) if names[first:] in own), None)
        if owner is None or len(own[owner].shape) != len(leaf.shape):
            stacked = leaf.ndim >= 2 and leaf.shape[0] % asked.devices == 0
            return NamedSharding(mesh, PartitionSpec(AXES) if stacked else PartitionSpec())
        axes = tuple(specifications[owner]) + (None,) * len(leaf.shape)
        sizes = zip(axes, leaf.shape, own[owner].shape, strict=False)
        return NamedSharding(mesh, PartitionSpec(*(axis if size == full else None for axis, size, full in sizes)))

    return jax.tree.map_with_path(place, state)


def put(tree: Any, places: Any) -> Any:
    """Lay host or device arrays out as `places` (NamedShardings) say; each process holds all of `tree` and gives its
    part.
    """

    def place(array: Any, sharding: NamedSharding) -> jax.Array:
        if sharding.is_fully_addressable:
            return jax.device_put(array, sharding)
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(place, tree, places)


def on_one_device(tree: Any, mesh: Mesh | None) -> Any:
    """Whole arrays on the default device, of what was laid out over a mesh; of several processes, on each."""
    if mesh is None:
        return tree
    gather = jax.jit(lambda x: x, out_shardings=NamedSharding(mesh, PartitionSpec()))
    return jax.tree.map(lambda leaf: jnp.asarray(gather(leaf).addressable_data(0)), tree)


def constrain(x: jax.Array, *axes: str | tuple[str, ...] | None) -> jax.Array:
    """Ask that `x` be split over these axes of the mesh that the step runs under; without one, nothing."""
    if jax.sharding.get_abstract_mesh().empty:
        return x
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*axes))


class StackLayout(TypedDict):
    """What `nanocode.training.optimizer.build_optimizer` takes to share Muon's work out."""

    stack_multiple: int
    shard_stack: Callable[[jax.Array], jax.Array]
    gather_stack: Callable[[jax.Array], jax.Array]


def stack_layout(mesh: Mesh | None) -> StackLayout:
    """Whole matrices of a (N, in, out) stack to every device of the mesh, and their results back.

    Where every device keeps all weights it needs all results: one gathering a stack. Where `fsdp` or `tensor` split the
    weights, a device needs its own parts alone, and what to send is left to the compiler.
    """
    asked = layout_of(mesh)
    return {
        "stack_multiple": asked.devices,
        "shard_stack": lambda stack: constrain(stack, AXES),
        "gather_stack": as_it_is if asked.fsdp * asked.tensor > 1 else constrain,
    }


def names_of(path: tuple[Any, ...]) -> tuple[str, ...]:
    """The names along the path of a leaf in a tree of parameters or of optimizer state."""
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
