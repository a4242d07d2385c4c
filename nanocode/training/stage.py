"""What pretraining, SFT and DPO share around the loop: checkpoints, stop requests, log, metrics, profile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import optax
from flax import nnx
from jax.sharding import Mesh

from nanocode.config import ComputeConfig, GuardConfig
from nanocode.data.prefetch import Prefetch
from nanocode.model.gpt import GPT
from nanocode.model.parameters import with_parameters
from nanocode.stopping import Interrupted
from nanocode.training.batches import placed
from nanocode.training.checkpoint import Checkpointer, Store
from nanocode.training.compiled import compiled_before_use
from nanocode.training.distributed import agree
from nanocode.training.guard import Guard, SpikeGuard
from nanocode.training.hardware import devices_of, measured_flops, peak_flops
from nanocode.training.journal import Journal
from nanocode.training.loop import Listener, Rules, train
from nanocode.training.metrics import StepFile, TrainingLog, Workload
from nanocode.training.probes import Probe, Probes
from nanocode.training.sharding import check_shape, layout_of, on_one_device
from nanocode.training.step import Loss, TrainState, initial_state, make_step
from nanocode.training.tracing import Tracer
from nanocode.training.trackers import open_trackers

_DEFAULT_GUARD = GuardConfig()
_CURVE_POINTS = 1_000  # in the metrics; the metrics file has every step


@dataclass(frozen=True)
class Running:
    """How a stage is carried out; nothing here decides what comes out.

    `workspace` is a local folder of the stage for what people look at while it runs: the metrics file, profiles,
    trackers. Without it there is none of these.
    """

    say: Callable[[str], None] = lambda line: None
    store: Store | None = None
    compute: ComputeConfig = field(default_factory=ComputeConfig)
    stop_requested: Callable[[], bool] = lambda: False
    mesh: Mesh | None = None
    workspace: Path | None = None

    def pause(self, where: str) -> None:
        """A moment at which the stage may stop: what its loop made is saved. Raises Interrupted when asked to."""
        if agree(self.stop_requested()):
            raise Interrupted(f"stopped {where}; run the same command to continue")


class Trained(NamedTuple):
    """The model and what is worth keeping of how it came about."""

    model: GPT
    metrics: dict[str, Any]
    journal: Journal

    def write_metrics(self, folder: Path) -> None:
        """Write ``metrics.jsonl``: a line a step, with no times in it, so that the same run gives the same bytes."""
        (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in self.journal.lines()), encoding="utf-8")


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
    guard: GuardConfig = _DEFAULT_GUARD,
    guards: Sequence[Guard] = (),
    probes: Sequence[Probe] = (),
    rate_factor: Callable[[int], float] | None = None,
) -> Trained:
    """Train `model` for `steps`, resuming from `running.store`; `guards` watch beside those of the config.

    The metrics of a run that was interrupted are those of one that was not, but for its times. Raises what
    `nanocode.training.loop.train` raises, and ConfigError for a model or a batch that does not divide over
    `running.mesh`, or a tracker that is not installed.
    """
    compute, mesh = running.compute, running.mesh
    check_shape(layout_of(mesh), model.shape)

    def model_of(state: TrainState) -> GPT:
        return with_parameters(model, on_one_device(state.parameters, mesh))

    with ExitStack() as stack:
        listeners: list[Listener] = [Probes(probes, model_of, label, running.say)]
        if jax.process_index() == 0:
            workload = _workload(model, tokens_per_step, label, running, rate_factor)
            listeners.append(TrainingLog(workload, running.say, compute.log_every_seconds))
            listeners += _files(stack, running, label, tokens_per_step)
        checkpointer = None
        if running.store is not None:
            checkpointer = Checkpointer(running.store, compute.keep_checkpoints, compute.keep_best)
            stack.callback(checkpointer.close)
        state, journal = train(
            lambda: initial_state(model, optimizer, mesh),
            compiled_before_use(make_step(model, loss, optimizer, mesh, compute.device_batch_rows)),
            stack.enter_context(Prefetch(placed(batch, mesh), steps)),
            steps,
            checkpointer=checkpointer,
            guards=(SpikeGuard(guard.spike_deviations, guard.spike_nats), *guards),
            listeners=listeners,
            rules=_rules(stack, running, guard),
        )
    return Trained(model_of(state), metrics_of(journal, tokens_per_step, rate_factor), journal)


def metrics_of(journal: Journal, tokens_per_step: int, rate_factor: Callable[[int], float] | None) -> dict[str, Any]:
    """Figures and curves of a finished run; all but "timing" are the same for every run of the same thing."""
    stride = math.ceil(len(journal.history) / _CURVE_POINTS)
    shown = [report for report in journal.history if report.step % stride == 0 or report.step == journal.steps]
    rates = [{} if rate_factor is None else {"rate": round(rate_factor(report.step - 1), 6)} for report in shown]
    curve = [
        {"step": report.step, **{name: round(value, 5) for name, value in report.metrics.items()}, **rate}
        for report, rate in zip(shown, rates, strict=True)
    ]
    timing = [
        {"step": report.step, "tokens_per_second": round(tokens_per_step / max(1e-9, report.seconds), 1)}
        for report in shown
    ]
    return {
        "steps": journal.steps,
        "tokens": journal.steps * tokens_per_step,
        "curve": curve,
        "timing": timing,
        "observations": journal.observations,
        "returns": [asdict(each) for each in journal.returns],
    }


def _workload(
    model: GPT, tokens: int, label: str, running: Running, rate_factor: Callable[[int], float] | None
) -> Workload:
    devices = tuple(running.mesh.devices.flat) if running.mesh is not None else tuple(devices_of(nnx.state(model)))
    flops = float(model.shape.flops_per_token) * tokens
    peak, name = peak_flops(devices[0].device_kind), "MFU"
    if peak is None and running.compute.measure_ceiling:
        peak, name = measured_flops(model.config.dtype), "of a matrix product's speed"
    ceiling = None if peak is None else peak * len(devices)
    return Workload(label, tokens, flops, devices, ceiling, name, rate_factor)


def _files(stack: ExitStack, running: Running, label: str, tokens: int) -> list[Listener]:
    """The metrics file and the trackers, closed with the stack."""
    if running.workspace is None:
        return []
    made: list[Any] = [
        StepFile(running.workspace / "metrics.jsonl", tokens),
        *open_trackers(running.compute.trackers, running.workspace, label),
    ]
    for each in made:
        stack.callback(each.close)
    running.say(f"{label}: metrics of every step in {running.workspace / 'metrics.jsonl'}")
    return made


def _rules(stack: ExitStack, running: Running, guard: GuardConfig) -> Rules:
    compute = running.compute
    rules = Rules(
        compute.checkpoint_every_seconds,
        guard.max_returns,
        running.stop_requested,
        agree=agree,
        checkpoint_every_steps=compute.checkpoint_every_steps,
        keep_best=compute.keep_best,
    )
    if compute.profile_steps is None or running.workspace is None:
        return rules
    first, last = (int(step) for step in compute.profile_steps.split(":"))
    tracer = Tracer(first, last, running.workspace / "profile", running.say)
    stack.callback(tracer.close)
    return replace(rules, traced=tracer)
