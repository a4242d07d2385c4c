"""What pretraining, SFT and DPO share around the loop: checkpoints, stop requests, the log, the metrics file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import optax

from nanocode.model.gpt import GPT
from nanocode.training.checkpoint import Checkpointer, Store
from nanocode.training.loop import Report, train
from nanocode.training.progress import Progress
from nanocode.training.step import Loss, initial_state, make_step, with_parameters


@dataclass(frozen=True)
class Running:
    """How a stage is carried out; nothing here decides what comes out."""

    say: Callable[[str], None] = lambda line: None
    store: Store | None = None
    checkpoint_every_seconds: float = 30.0
    keep_checkpoints: int = 2
    stop_requested: Callable[[], bool] = lambda: False


class Trained(NamedTuple):
    """The model and what is worth keeping of how it came about."""

    model: GPT
    metrics: dict[str, Any]


def run_training(
    model: GPT,
    loss: Loss,
    optimizer: optax.GradientTransformation,
    batch: Callable[[int], Any],
    steps: int,
    *,
    tokens_per_step: int,
    label: str,
    running: Running,
    observe: Callable[[Report], None] = lambda report: None,
) -> Trained:
    """Train `model` for `steps`, resuming from `running.store`. The curve in the metrics holds the steps done here.

    Raises what `nanocode.training.loop.train` raises.
    """
    checkpointer = Checkpointer(running.store, running.keep_checkpoints) if running.store else None
    progress = Progress(label, steps, running.say)
    losses: list[tuple[int, dict[str, float]]] = []

    def watch(report: Report) -> None:
        losses.append((report.step, report.metrics))
        detail = ", ".join(f"{name} {value:.4f}" for name, value in report.metrics.items())
        progress.update(report.step, f"{detail} | {tokens_per_step / max(1e-9, report.seconds):,.0f} tokens/s")
        observe(report)

    try:
        state = train(
            initial_state(model, optimizer),
            make_step(model, loss, optimizer),
            batch,
            steps,
            checkpointer=checkpointer,
            checkpoint_every_seconds=running.checkpoint_every_seconds,
            stop_requested=running.stop_requested,
            observe=watch,
        )
    finally:
        if checkpointer is not None:
            checkpointer.close()
    curve = [{"step": step, **{name: round(value, 5) for name, value in named.items()}} for step, named in losses]
    metrics = {"steps": steps, "tokens": steps * tokens_per_step, "curve": curve}
    return Trained(with_parameters(model, state.parameters), metrics)
