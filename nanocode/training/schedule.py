"""Schedules: pure functions of the step (0 for the first update), which may be traced.

Sources: karpathy/nanochat at 92d63d4 for the corners. Where warm-up and warm-down of the rate overlap, in runs shorter
than any published one, `trapezoid` takes the lower of the two slopes; nanochat would jump down from the first one.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], "jax.Array | float"]


def trapezoid(
    steps: int, warmup_steps: int, warmdown_fraction: float, final_fraction: float
) -> Callable[[jax.Array], jax.Array]:
    """Rate factor in 0..1: (step+1)/warmup up to 1, flat, then linear to `final_fraction` over the last steps
    (nanochat).
    """
    warmdown = round(warmdown_fraction * steps)

    def factor(step: jax.Array) -> jax.Array:
        up = (step + 1) / max(1, warmup_steps)
        progress = (steps - step) / max(1, warmdown)
        down = progress + (1 - progress) * final_fraction
        return jnp.clip(jnp.minimum(jnp.minimum(up, 1.0), down if warmdown else 1.0), 0.0, 1.0)

    return factor


def constant(value: float) -> Schedule:
    """The same number at every step, not traced: what is computed from it is computed once, in double precision."""
    return lambda step: value


def momentum_ramp(
    steps: int, start: float, peak: float, end: float, warmup_steps: int, warmdown_fraction: float
) -> Schedule:
    """Momentum from `start` to `peak` over `warmup_steps`, then `peak`, then to `end` over the last steps (nanochat).

    The warm-up goes first: a run shorter than it never sees the warm-down.
    """
    if start == peak == end:
        return constant(peak)
    warmdown = round(warmdown_fraction * steps)

    def momentum(step: jax.Array) -> jax.Array:
        up = step / max(1, warmup_steps)
        down = jnp.maximum(0.0, (step - (steps - warmdown)) / max(1, warmdown))
        falling = peak + (end - peak) * down if warmdown else peak
        return jnp.where(step < warmup_steps, start + (peak - start) * up, falling)

    return momentum


def half_cosine(steps: int) -> Schedule:
    """Factor (1 + cos(pi step / steps)) / 2, from 1 to 0 over the run."""
    return lambda step: 0.5 * (1 + jnp.cos(jnp.pi * step / steps))
