"""Accelerators that a run can be planned for: figures of the vendors' data sheets, peaks as the log has them."""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import ConfigError
from nanocode.training.hardware import peak_flops


@dataclass(frozen=True)
class Chip:
    """One accelerator: dense bf16 FLOP/s, bytes of memory, bytes a second to and from it."""

    name: str
    kind: str  # as JAX names the device
    memory_bytes: int
    bandwidth: float

    @property
    def peak_flops(self) -> float:
        peak = peak_flops(self.kind)
        if peak is None:
            raise ConfigError(f"no peak FLOP/s is known of {self.kind}")
        return peak


CHIPS: dict[str, Chip] = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 32 * 10**9, 1.2e12),
        Chip("v5e", "TPU v5 lite", 16 * 10**9, 0.82e12),
        Chip("v5p", "TPU v5", 95 * 10**9, 2.77e12),
        Chip("v6e", "TPU v6 lite", 32 * 10**9, 1.6e12),
        Chip("a100", "NVIDIA A100-SXM4-80GB", 80 * 10**9, 2.0e12),
        Chip("h100", "NVIDIA H100 80GB HBM3", 80 * 10**9, 3.35e12),
        Chip("h200", "NVIDIA H200", 141 * 10**9, 4.8e12),
        Chip("l4", "NVIDIA L4", 24 * 10**9, 0.3e12),
    )
}


def find_chip(name: str) -> Chip:
    """The chip of a name. Raises ConfigError, with the names that there are."""
    if name not in CHIPS:
        raise ConfigError(f"no chip {name!r} is known: take one of {', '.join(sorted(CHIPS))}")
    return CHIPS[name]
