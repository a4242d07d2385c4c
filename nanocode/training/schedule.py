"""Learning-rate schedules: pure functions of the step."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

Schedule = Callable[[jax.Array], jax.Array]


def trapezoid(steps: int, warmup_steps: int, warmdown_fraction: float, final_fraction: float) -> Schedule:
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
