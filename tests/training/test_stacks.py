from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from nanocode.training.muon import normuon
from nanocode.training.stacks import over_stacks

ROOT = Path(__file__).resolve().parents[2]


def tree() -> dict[str, Any]:
    """Two shapes of matrix; one leaf holds a matrix for each of three layers."""
    rng = np.random.default_rng(0)
    sizes = {"a": (4, 6), "b": (6, 4), "c": (3, 4, 6), "d": (6, 4)}
    return {name: rng.normal(size=size).astype(np.float32) for name, size in sizes.items()}


def seen_by(multiple: int) -> list[tuple[int, ...]]:
    """The shapes of the stacks that `shard_stack` is given."""
    shapes: list[tuple[int, ...]] = []

    def note(stack: jax.Array) -> jax.Array:
        shapes.append(stack.shape)
        return stack

    transformation = over_stacks(optax.identity(), multiple, note)
    transformation.update(tree(), transformation.init(tree()))
    return shapes


def test_matrices_of_one_shape_are_one_stack_and_come_back_to_their_places() -> None:
    transformation = over_stacks(optax.stateless_with_tree_map(lambda stack, _: 2 * stack))
    doubled, _ = transformation.update(tree(), transformation.init(tree()))
    jax.tree.map(lambda new, old: np.testing.assert_array_equal(new, 2 * old), doubled, tree())
    assert seen_by(1) == [(4, 4, 6), (2, 6, 4)]


def test_stacks_are_padded_to_the_multiple() -> None:
    assert seen_by(3) == [(6, 4, 6), (3, 6, 4)]
    assert seen_by(4) == [(4, 4, 6), (4, 6, 4)]


@pytest.mark.parametrize("multiple", [3, 8])
def test_padding_changes_neither_results_nor_state(multiple: int) -> None:
    """So that a checkpoint of eight devices goes on on one."""
    results = []
    for transformation in (over_stacks(normuon(0.9)), over_stacks(normuon(0.9), multiple)):
        state = transformation.init(tree())
        for scale in (1.0, 3.0):
            update, state = transformation.update(jax.tree.map(lambda x, by=scale: x * by, tree()), state)
        results.append((update, state))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a, b), *results)
    assert [leaf.shape for leaf in jax.tree.leaves(results[1][1])] == [(4, 1, 6), (2, 6, 1)]


def test_what_is_gathered_is_still_whole() -> None:
    shapes = []
    transformation = over_stacks(
        optax.identity(),
        4,
        gather_stack=lambda stack: shapes.append(stack.shape) or stack,  # type: ignore[func-returns-value]
    )
    transformation.update(tree(), transformation.init(tree()))
    assert shapes == [(4, 4, 6), (4, 6, 4)]


def test_no_matrix_at_all_is_no_stack() -> None:
    transformation = over_stacks(normuon(0.9), 8)
    update, state = transformation.update({}, transformation.init({}))
    assert update == {}
    assert not jax.tree.leaves(state)


def test_a_stack_keeps_its_type() -> None:
    transformation = over_stacks(optax.identity(), 8)
    update, _ = transformation.update({"a": jnp.ones((2, 2), jnp.bfloat16)}, transformation.init({}))
    assert update["a"].dtype == jnp.bfloat16


@pytest.mark.slow
def test_eight_devices_share_the_products_and_agree_with_one() -> None:
    """Nine tall matrices are two a device, five wide ones one; one gathering a stack and no other traffic."""
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    program = Path(__file__).parent / "programs" / "muon_on_eight_devices.py"
    done = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["difference"] < 1e-6
    tall, wide = [[2, 32, 32], [2, 32, 96]], [[1, 32, 32], [1, 32, 64]]
    assert report["products"] == sorted(tall + wide)
    directions, moments = [[8, 32, 64], [16, 96, 32]], [[8, 1, 64], [16, 96, 1]]
    assert report["collectives"] == sorted(["all-gather", shape] for shape in directions + moments)
