from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from nanocode.training.hardware import devices_of, measured_flops, memory_bytes, peak_flops


@pytest.mark.parametrize(
    ("kind", "tera"),
    [
        ("TPU v4", 275),
        ("TPU v5 lite", 197),
        ("TPU v5e", 197),
        ("TPU v5", 459),
        ("TPU v5p", 459),
        ("TPU v6 lite", 918),
        ("TPU v6e", 918),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA B200", 2_250),
        ("NVIDIA L4", 121),
        ("NVIDIA L40S", 362),
        ("NVIDIA GeForce RTX 4090", 165.2),
    ],
)
def test_a_chip_is_found_by_the_name_that_jax_gives_it(kind: str, tera: float) -> None:
    assert peak_flops(kind) == tera * 1e12


@pytest.mark.parametrize("kind", ["cpu", "NVIDIA L400", "TPU v99", "Radeon"])
def test_what_is_not_in_the_table_has_no_peak(kind: str) -> None:
    assert peak_flops(kind) is None


def test_the_measured_ceiling_is_a_speed_of_this_machine() -> None:
    assert 1e9 < measured_flops("float32") < 1e15


def test_a_cpu_counts_the_memory_of_the_process() -> None:
    devices = devices_of({"x": jnp.ones(3), "host": 1.0})
    assert devices == [jax.devices()[0]]
    assert 1e7 < memory_bytes(devices) < 1e12


def test_a_device_that_tells_its_peak_is_believed() -> None:
    class Device:
        def __init__(self, process: int, peak: int) -> None:
            self.process_index, self._peak = process, peak

        def memory_stats(self) -> dict[str, int]:
            return {"peak_bytes_in_use": self._peak, "bytes_limit": 10**12}

    assert memory_bytes([Device(0, 5), Device(0, 7), Device(1, 9)]) == 7  # type: ignore[list-item]
