"""Layouts, the parts of a batch, and what cannot work; training on eight devices in a process of its own (slow)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import PartitionSpec

from nanocode.config import ComputeConfig, ConfigError, ModelConfig, OptimizerConfig
from nanocode.model.depth import shape
from nanocode.model.gpt import GPT
from nanocode.training.accumulation import accumulated, part_count, split
from nanocode.training.distributed import agree, join
from nanocode.training.losses import Batch, target_mask
from nanocode.training.optimizer import build_optimizer
from nanocode.training.pairs import PairBatch
from nanocode.training.sharding import Layout, build_mesh, check_shape, layout, specification, stack_layout
from nanocode.training.stacks import as_it_is
from nanocode.training.step import abstract_state

PROGRAMS = Path(__file__).parent / "programs"
ROOT = Path(__file__).resolve().parents[2]


def free_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


def virtual_devices(count: int) -> dict[str, str]:
    """The environment of a process with so many CPU devices, where compiling fast matters more than running fast."""
    flags = f"--xla_force_host_platform_device_count={count} --xla_backend_optimization_level=0"
    return {"XLA_FLAGS": f"{flags} --xla_llvm_disable_expensive_passes=true", "JAX_PLATFORMS": "cpu"}


def compute(**fields: int) -> ComputeConfig:
    return ComputeConfig.model_validate(fields)


def mesh_of(*shape: int) -> Any:
    """As much of a mesh as can be asked for its layout: there are not so many devices here."""
    return SimpleNamespace(devices=np.empty(shape))


def rows(count: int, width: int = 5) -> Batch:
    generator = np.random.default_rng(count)
    ids = generator.integers(0, 9, (count, width)).astype(np.int32)
    mask = (generator.random(ids.shape) < generator.random((count, 1))).astype(np.int8)
    return Batch(ids, mask, np.zeros_like(ids))


def pairs(count: int) -> PairBatch:
    return PairBatch(rows(2 * count), np.arange(count, dtype=np.float32), -np.arange(count, dtype=np.float32))


@pytest.mark.parametrize(
    ("fields", "devices", "expected"),
    [
        ({}, 1, Layout(1, 1, 1)),
        ({}, 8, Layout(8, 1, 1)),
        ({"mesh_fsdp": 8}, 8, Layout(1, 8, 1)),
        ({"mesh_fsdp": 2, "mesh_tensor": 2}, 8, Layout(2, 2, 2)),
        ({"mesh_data": 2}, 8, Layout(2, 1, 1)),
    ],
)
def test_devices_that_no_axis_asks_for_share_the_rows(fields: dict[str, int], devices: int, expected: Layout) -> None:
    assert layout(compute(**fields), devices) == expected


@pytest.mark.parametrize(
    ("fields", "devices", "message"),
    [
        ({"mesh_fsdp": 16}, 8, "needs 16 devices and there are 8"),
        ({"mesh_data": 4, "mesh_tensor": 4}, 8, "needs 16 devices and there are 8"),
        ({"mesh_fsdp": 3}, 8, "8 devices do not divide by mesh_fsdp 3"),
    ],
)
def test_a_mesh_that_does_not_fit_the_devices_is_refused(fields: dict[str, int], devices: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        layout(compute(**fields), devices)


def test_one_device_needs_no_mesh() -> None:
    assert build_mesh(Layout(1, 1, 1), jax.devices()[:1]) is None


def test_heads_that_the_tensor_axis_cannot_split_are_refused() -> None:
    model = shape(ModelConfig(depth=2, width=64, heads=4), 300)
    check_shape(Layout(1, 1, 4), model)
    with pytest.raises(ConfigError, match="mesh_tensor 8 does not divide the 4 heads"):
        check_shape(Layout(1, 1, 8), model)
    with pytest.raises(ConfigError, match="mesh_tensor 4 does not divide the 2 key-value heads"):
        check_shape(Layout(1, 1, 4), replace(model, kv_heads=2))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("query", PartitionSpec("fsdp", "tensor")),
        ("up", PartitionSpec("fsdp", "tensor")),
        ("output", PartitionSpec("tensor", "fsdp")),
        ("down", PartitionSpec("tensor", "fsdp")),
        ("unembedding", PartitionSpec("tensor", "fsdp")),
        ("value_gate", PartitionSpec()),
    ],
)
def test_matrices_are_split_as_megatron_does(name: str, expected: PartitionSpec) -> None:
    path = (jax.tree_util.DictKey("blocks"), jax.tree_util.DictKey(0), jax.tree_util.DictKey(name))
    assert specification(path, (64, 64), Layout(1, 2, 2)) == expected


def test_what_does_not_divide_is_repeated_and_leading_axes_are_whole() -> None:
    path = (jax.tree_util.DictKey("value_embeddings"),)
    assert specification(path, (3, 100, 64), Layout(1, 8, 8)) == PartitionSpec(None, None, "fsdp")


@pytest.mark.parametrize("depth", [12, 24])
def test_no_large_parameter_is_forgotten_by_the_rules(depth: int) -> None:
    """A parameter under a new name would be repeated on every device without a word."""
    model_config = ModelConfig(depth=depth, value_embeddings=True, layer_scalars=True)
    model = nnx.eval_shape(lambda: GPT(model_config, 32_768, nnx.Rngs(0)))
    state = abstract_state(model, build_optimizer(OptimizerConfig(), 10))
    for path, leaf in jax.tree.leaves_with_path(state.parameters):
        if leaf.size > 100_000:
            assert "fsdp" in specification(path, leaf.shape, Layout(1, 8, 1)), path


@pytest.mark.parametrize(
    ("batch", "asked", "device_batch_rows", "expected"),
    [
        (rows(16), Layout(1, 1, 1), None, 1),
        (rows(16), Layout(8, 1, 1), None, 1),
        (rows(16), Layout(1, 1, 1), 4, 4),
        (rows(16), Layout(1, 1, 1), 5, 4),
        (rows(16), Layout(2, 2, 2), 1, 4),
        (rows(16), Layout(1, 1, 1), 100, 1),
        (pairs(8), Layout(2, 1, 1), 4, 2),
        (pairs(8), Layout(2, 1, 1), 1, 4),
    ],
)
def test_a_batch_has_the_fewest_parts_that_a_device_can_hold(
    batch: Any, asked: Layout, device_batch_rows: int | None, expected: int
) -> None:
    assert part_count(batch, asked, device_batch_rows) == expected


@pytest.mark.parametrize(("shape", "gathers"), [((8, 1, 1), True), ((1, 8, 1), False), ((2, 1, 4), False)])
def test_stacks_are_gathered_where_every_device_keeps_all_weights(shape: tuple[int, ...], gathers: bool) -> None:
    found = stack_layout(mesh_of(*shape))
    assert found["stack_multiple"] == 8
    assert (found["gather_stack"] is not as_it_is) == gathers


def test_a_batch_that_does_not_divide_over_the_mesh_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"12 rows does not divide over 8 devices .*mesh_data 4 x mesh_fsdp 2"):
        part_count(rows(12), Layout(4, 2, 1), None)
    with pytest.raises(ConfigError, match="4 pairs does not divide over 8"):
        part_count(pairs(4), Layout(8, 1, 1), None)


def test_the_parts_hold_every_row_once_and_pairs_stay_together() -> None:
    whole = rows(12)
    parts = split(whole, 3)
    assert parts.ids.shape == (3, 4, 5)
    for part in range(3):
        assert np.array_equal(parts.ids[part], whole.ids[part::3])
    double = pairs(6)
    pieces = split(double, 2)
    for part in range(2):
        chosen, rejected = np.split(np.asarray(pieces.rows.ids[part]), 2)
        assert np.array_equal(chosen, double.rows.ids[:6][part::2])
        assert np.array_equal(rejected, double.rows.ids[6:][part::2])
        assert np.array_equal(pieces.reference_chosen[part], double.reference_chosen[part::2])


@pytest.mark.parametrize("parts", [2, 3, 6])
def test_gradients_in_parts_are_those_of_the_whole_batch(parts: int) -> None:
    """With masks of very different size, where a mean of means would be another number."""

    def loss(weight: jax.Array, batch: Batch) -> tuple[jax.Array, dict[str, jax.Array]]:
        mask = target_mask(batch)
        error = (weight[batch.ids[:, 1:]] - batch.ids[:, :-1]) ** 2
        mean = jnp.sum(error * mask) / jnp.maximum(1.0, jnp.sum(mask))
        return mean, {"half": mean / 2}

    batch = rows(12)
    assert len(set(batch.mask[:, 1:].sum(axis=1))) > 2
    gradients = jax.value_and_grad(loss, has_aux=True)
    weight = jnp.linspace(-1.0, 1.0, 9)
    expected = gradients(weight, batch)
    jax.tree.map(
        lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-5),
        accumulated(gradients, parts)(weight, batch),
        expected,
    )


def test_a_batch_without_targets_has_no_gradient_in_parts_either() -> None:
    gradients = jax.value_and_grad(lambda weight, batch: (weight * jnp.sum(target_mask(batch)), {}), has_aux=True)
    empty = rows(4)._replace(mask=np.zeros((4, 5), np.int8))
    (loss, _), found = accumulated(gradients, 2)(jnp.float32(3.0), empty)
    assert (float(loss), float(found)) == (0.0, 0.0)


def run(program: str, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / program), *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def on_eight_devices(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    out = tmp_path_factory.mktemp("layouts") / "results.json"
    process = run("layouts.py", str(out), **virtual_devices(8))
    said, _ = process.communicate()
    assert process.returncode == 0, said[-2_000:]
    return json.loads(out.read_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "accumulated",
        "data",
        "fsdp",
        "fsdp, layers in a loop",
        "fsdp and tensor",
        "all, accumulated",
        "all, layers in a loop",
    ],
)
def test_every_layout_has_the_losses_of_one_device(on_eight_devices: dict[str, Any], name: str) -> None:
    expected = np.array(on_eight_devices["results"]["one device"]["losses"])
    assert len(expected) == 20
    assert expected[0] - expected[-1] > 0.1, "it learns: the optimizer takes part in the comparison"
    np.testing.assert_allclose(on_eight_devices["results"][name]["losses"], expected, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "share"), [("one device", 1.0), ("data", 1.0), ("fsdp", 1 / 8), ("fsdp and tensor", 1 / 8)]
)
def test_a_device_holds_its_share_of_the_weights(on_eight_devices: dict[str, Any], name: str, share: float) -> None:
    assert on_eight_devices["results"][name]["share"]["parameters"] == share


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fsdp", "fsdp and tensor"])
def test_a_device_holds_its_share_of_the_optimizer_state(on_eight_devices: dict[str, Any], name: str) -> None:
    assert on_eight_devices["results"][name]["share"]["optimizer"] == 1 / 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one device", "data", "fsdp", "fsdp and tensor"])
def test_a_checkpoint_keeps_every_bit_and_the_layout(on_eight_devices: dict[str, Any], name: str) -> None:
    assert on_eight_devices["results"][name]["kept"] is True


@pytest.mark.slow
def test_laying_out_and_gathering_changes_no_bit(on_eight_devices: dict[str, Any]) -> None:
    assert on_eight_devices["laid out and back"] is True


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("processes")
    port = free_port()
    started = [run("two_processes.py", str(number), port, str(folder), **virtual_devices(2)) for number in range(2)]
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0, said[-2_000:]
    return [json.loads((folder / f"{number}.json").read_text()) for number in range(2)]


@pytest.mark.slow
def test_two_processes_have_the_losses_of_one_device(
    two_processes: list[dict[str, Any]], on_eight_devices: dict[str, Any]
) -> None:
    expected = on_eight_devices["results"]["one device"]["losses"][:6]
    for seen in two_processes:
        assert seen["joined"]
        np.testing.assert_allclose(seen["losses"], expected, atol=1e-4, rtol=0)


@pytest.mark.slow
def test_each_process_reads_its_own_rows_alone(two_processes: list[dict[str, Any]]) -> None:
    assert [seen["rows read"] for seen in two_processes] == [8, 8]
    assert all(seen["rows are those of the batch"] for seen in two_processes)


@pytest.mark.slow
def test_two_processes_agree_and_hold_the_same_weights(two_processes: list[dict[str, Any]]) -> None:
    assert [seen["agreed"] for seen in two_processes] == [[True, False], [True, False]]
    assert two_processes[0]["embedding"] == two_processes[1]["embedding"]
    assert two_processes[0]["embedding"][0] is True


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"NANOCODE_COORDINATOR": "host:1"}, "needs NANOCODE_PROCESSES"),
        ({"NANOCODE_COORDINATOR": "host:1", "NANOCODE_PROCESSES": "2", "NANOCODE_PROCESS": "two"}, "as numbers"),
        ({"NANOCODE_COORDINATOR": "host:1", "NANOCODE_PROCESSES": "2", "NANOCODE_PROCESS": "2"}, "count from 0"),
    ],
)
def test_half_a_description_of_the_processes_is_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        join(environment)


def test_alone_there_is_nothing_to_join_and_nothing_to_agree_on() -> None:
    assert join({}) is False
    assert (agree(True), agree(False)) == (True, False)


def test_a_stop_signal_is_heard_by_a_process_that_has_joined() -> None:
    """JAX's preemption service would keep it to itself."""
    said, _ = run("joined_and_stopped.py", free_port(), **virtual_devices(1)).communicate()
    assert "heard True" in said, said[-2_000:]
