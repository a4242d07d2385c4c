"""The one training loop: pretraining, SFT and DPO differ in their loss and their batches, not in how they run.

A batch is a pure function of the step, so resuming needs no loader state: restore the newest checkpoint, go on at its
step, and the weights end byte-identical to an uninterrupted run on the same hardware.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from nanocode.training.checkpoint import Checkpointer
from nanocode.training.step import TrainState


class Report(NamedTuple):
    """One step, as the log and the metrics file see it."""

    step: int  # steps taken, counting from 1
    steps: int
    seconds: float
    metrics: dict[str, float]  # "loss" and what the loss function named


class TrainingError(RuntimeError):
    """Training that cannot go on: a loss that is not finite, or a guard that tripped."""


class Interrupted(RuntimeError):
    """Training was asked to stop and has saved its state: the same command continues it."""


def train(
    state: TrainState,
    step: Callable[[TrainState, Any], tuple[TrainState, dict[str, jax.Array]]],
    batch: Callable[[int], Any],
    steps: int,
    *,
    checkpointer: Checkpointer | None = None,
    checkpoint_every_seconds: float = math.inf,
    stop_requested: Callable[[], bool] = lambda: False,
    observe: Callable[[Report], None] = lambda report: None,
    clock: Callable[[], float] = time.monotonic,
) -> TrainState:
    """Run `step` on `batch(0) .. batch(steps - 1)`, from the newest checkpoint if there is one.

    `observe` sees every step and may raise TrainingError to stop it (a guard). Raises Interrupted, after a save, when
    `stop_requested()`; TrainingError when the loss is not finite, so that a broken state is never saved.
    """
    if checkpointer is not None:
        state = checkpointer.restore(state) or state
    saved_at = clock()
    for index in range(int(state.step), steps):
        started = clock()
        state, values = step(state, batch(index))
        metrics = {name: float(value) for name, value in values.items()}
        if not math.isfinite(metrics["loss"]):
            raise TrainingError(f"the loss became {metrics['loss']} at step {index + 1}: lower the learning rates")
        observe(Report(index + 1, steps, clock() - started, metrics))
        if stop_requested() and index + 1 < steps:
            if checkpointer is not None:
                checkpointer.save(index + 1, state)
                checkpointer.wait()
            raise Interrupted(f"stopped at step {index + 1} of {steps}; run the same command to continue")
        if checkpointer is not None and clock() - saved_at >= checkpoint_every_seconds and index + 1 < steps:
            checkpointer.save(index + 1, state)
            saved_at = clock()
    if checkpointer is not None:
        checkpointer.wait()
    return state
