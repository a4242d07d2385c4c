"""Matrices of one shape as one stack: one batched product in place of many, and the unit that devices share out."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import optax

from nanocode.model.parameters import as_it_is

ShardStack = Callable[[jax.Array], jax.Array]
"""Lays a (N, in, out) stack out over devices, as `jax.lax.with_sharding_constraint` does; its values stay."""


def over_stacks(
    inner: optax.GradientTransformation,
    multiple: int = 1,
    shard_stack: ShardStack = as_it_is,
    gather_stack: ShardStack = as_it_is,
) -> optax.GradientTransformation:
    """Apply `inner` to a list of (N, in, out) stacks, one for each shape of matrix in the tree.

    Leading axes of a leaf count as matrices. Every stack, and every array of `inner`'s state (whose first axis must be
    the stack's), is padded with zeros to a multiple of `multiple` matrices and handed to `shard_stack`, so that each
    device works on its own matrices alone. What comes of it goes through `gather_stack` before it is taken apart: one
    gathering a stack where every device needs every matrix, which the compiler would else send one by one; parts of
    matrices it exchanges by itself. The state is kept unpadded: it does not depend on the number of devices.
    """

    def placed(stack: jax.Array) -> jax.Array:
        padding = -len(stack) % multiple
        return shard_stack(jnp.pad(stack, ((0, padding), *[(0, 0)] * (stack.ndim - 1))) if padding else stack)

    def init(parameters: optax.Params) -> optax.OptState:
        return inner.init(_stacks(parameters))

    def update(
        gradients: optax.Updates, state: optax.OptState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        del parameters
        before = (_stacks(gradients), state)
        after = inner.update(*jax.tree.map(placed, before))
        stacks, state = jax.tree.map(lambda new, old: gather_stack(new)[: len(old)], after, before)
        return _unstack(stacks, gradients), state

    return optax.GradientTransformation(init, update)


def _by_shape(leaves: list[jax.Array]) -> list[list[int]]:
    """The positions of the leaves of each shape of matrix, in order of first appearance."""
    positions: dict[tuple[int, ...], list[int]] = {}
    for position, leaf in enumerate(leaves):
        positions.setdefault(leaf.shape[-2:], []).append(position)
    return list(positions.values())


def _stacks(tree: optax.Updates) -> list[jax.Array]:
    leaves = jax.tree.leaves(tree)
    return [
        jnp.concatenate([leaves[position].reshape(-1, *leaves[position].shape[-2:]) for position in positions])
        for positions in _by_shape(leaves)
    ]


def _unstack(stacks: list[jax.Array], like: optax.Updates) -> optax.Updates:
    leaves, structure = jax.tree.flatten(like)
    for stack, positions in zip(stacks, _by_shape(leaves), strict=True):
        start = 0
        for position in positions:
            shape = leaves[position].shape
            count = leaves[position].size // (shape[-2] * shape[-1])
            leaves[position] = stack[start : start + count].reshape(shape)
            start += count
    return jax.tree.unflatten(structure, leaves)
