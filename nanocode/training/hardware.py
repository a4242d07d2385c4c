"""What the machine can do at most, and how much memory a run has taken: the yardsticks of the log line."""

from __future__ import annotations

import re
import resource
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

# Dense bf16 FLOP/s of one JAX device, from the vendors' data sheets (Google Cloud's TPU pages; NVIDIA's product pages,
# sparsity not counted, fp32 accumulation). The first pattern that is found in the device kind counts. A v2 or v3 chip
# shows as two devices, one a core.
PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    (r"TPU v2", 22.5e12),
    (r"TPU v3", 61.5e12),
    (r"TPU v4 lite", 138e12),
    (r"TPU v4", 275e12),
    (r"TPU v5( lite|e)", 197e12),
    (r"TPU v5", 459e12),  # v5p names itself "TPU v5"
    (r"TPU v6( lite|e)", 918e12),
    (r"B200", 2_250e12),
    (r"H200", 989e12),
    (r"H100 PCIe", 756e12),
    (r"H100 NVL", 835e12),
    (r"H100|GH200", 989e12),
    (r"A100", 312e12),
    (r"L40S", 362e12),
    (r"L4\b", 121e12),
    (r"RTX 5090", 209.5e12),
    (r"RTX 4090", 165.2e12),
    (r"RTX 3090", 71e12),
)

_CEILING_SIZE = 2_048  # of the square product that is timed
_CEILING_ROUNDS = 5
_WORTH_KEEPING_SECONDS = 0.5  # of compiling


def peak_flops(device_kind: str) -> float | None:
    """Dense bf16 FLOP/s of one device by its kind; None for one that is not in the table, a CPU above all."""
    return next((peak for pattern, peak in PEAK_FLOPS if re.search(pattern, device_kind)), None)


def measured_flops(dtype: Literal["float32", "bfloat16"]) -> float:
    """FLOP/s of a large square product on the default device, best of several: a ceiling for what has no table."""
    matrix = jnp.ones((_CEILING_SIZE, _CEILING_SIZE), dtype)
    product = jax.jit(jnp.matmul)
    jax.block_until_ready(product(matrix, matrix))
    seconds = []
    for _ in range(_CEILING_ROUNDS):
        started = time.perf_counter()
        jax.block_until_ready(product(matrix, matrix))
        seconds.append(time.perf_counter() - started)
    return 2 * _CEILING_SIZE**3 / min(seconds)


def keep_compiled(folder: Path) -> None:
    """From now on this process keeps compiled programs in a local folder and looks for them there first.

    The key of a program holds its computation, the compiler's version and flags and the kind of device, so that a found
    one is what compiling would give. Call it before the first compilation.
    """
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING_SECONDS)


def devices_of(tree: Any) -> list[jax.Device]:
    """The devices that hold a tree's arrays, those of other processes too."""
    found = {device for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array) for device in leaf.devices()}
    return sorted(found, key=lambda device: device.id)


def memory_bytes(devices: Sequence[jax.Device]) -> int:
    """The most memory that any device of this process has held; the process's own peak where devices do not tell."""
    stats = [device.memory_stats() for device in devices if device.process_index == jax.process_index()]
    peaks = [int(each["peak_bytes_in_use"]) for each in stats if each is not None and "peak_bytes_in_use" in each]
    return max(peaks) if peaks else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024
