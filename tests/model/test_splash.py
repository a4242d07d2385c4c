"""Splash attention on a mesh. Its figures on one device are in `test_attention.py`; no TPU is needed for either."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from nanocode.model.attention import target_platform
from nanocode.model.splash import _blocks

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]


def run_program(name: str, **environment: str) -> object:
    """What a program prints last, as JSON. It has devices of its own, which this process cannot change any more."""
    done = subprocess.run(
        [sys.executable, PROGRAMS / name],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
            "JAX_PLATFORMS": "cpu",
            **environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_on_a_mesh_each_device_attends_to_its_own_rows_and_heads() -> None:
    """Same figures as on one device, and no key travels; what does not divide is computed whole everywhere."""
    divided, whole = run_program("splash_on_a_mesh.py", XLA_FLAGS="--xla_force_host_platform_device_count=8")
    for case in (divided, whole):
        assert max(case["differences"]) < 2e-5
    assert divided["moves"] == []


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("libtpu") is None, reason="libtpu (the extra tpu) is not installed")
def test_the_real_compiler_takes_the_kernel_for_a_machine_that_is_not_here() -> None:
    """Two windows, packed documents, shared key heads, a head narrower than a register, a length between blocks."""
    kernels = run_program(
        "splash_for_v6e.py",
        TPU_SKIP_MDS_QUERY="1",
        TPU_ACCELERATOR_TYPE="v6e-8",
        TPU_WORKER_HOSTNAMES="localhost",
        ALLOW_MULTIPLE_LIBTPU_LOAD="1",
    )
    assert kernels == [3, 3, 3]  # forward, and the gradients to queries and to keys and values


@pytest.mark.parametrize("tokens", [128, 384, 640, 1_024, 1_152, 1_600 + 64, 2_048, 3_072, 4_096, 4_224, 8_192])
def test_blocks_divide_every_length_that_padding_can_give(tokens: int) -> None:
    blocks = _blocks(tokens)
    for size in (blocks.block_q, blocks.block_kv, blocks.block_q_dkv, blocks.block_kv_dkv, blocks.block_kv_compute):
        assert tokens % size == 0
        assert size % 128 == 0
    assert blocks.has_backward_blocks


def test_the_mesh_decides_for_which_platform_a_program_is_traced() -> None:
    assert target_platform() == "cpu"
    mesh = Mesh(np.array(jax.devices()[:1]), ("data",), axis_types=(AxisType.Auto,))
    with jax.set_mesh(mesh):
        assert target_platform() == "cpu"
        placed = jax.jit(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec("data")))(jnp.ones(4))
    assert placed.shape == (4,)
