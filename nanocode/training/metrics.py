"""What a run says of itself while it goes: a line in the log every few seconds, and a line in a file for every step."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import jax
import jax.numpy as jnp

from nanocode.config import OptimizerConfig
from nanocode.training.guard import RunningMean
from nanocode.training.hardware import memory_bytes
from nanocode.training.journal import Journal, Report
from nanocode.training.progress import clock_time
from nanocode.training.recipes import resolve

_LOSS_MEMORY = 0.9  # of the smoothed loss in the log


@dataclass(frozen=True)
class Workload:
    """What one step of a run asks of the machine.

    `flops` are a step's; `ceiling_flops` are FLOP/s of all devices together, None where nobody knows; `rate_factor`
    gives the schedule's factor at a step counting from 0.
    """

    label: str
    tokens: int
    flops: float
    devices: tuple[jax.Device, ...] = ()
    ceiling_flops: float | None = None
    ceiling_name: str = "MFU"
    rate_factor: Callable[[int], float] | None = None


class TrainingLog:
    """One compact line now and then, and at the end:

    ``sft step 120/640 | loss 0.7123 | rate x0.83 | 412 ms | 9,940 tokens/s | MFU 41.2% | 1.2 GB | ETA 3:12``

    The loss is a running mean, the rest the mean since the line before.
    """

    def __init__(
        self,
        workload: Workload,
        say: Callable[[str], None],
        every_seconds: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._workload, self._say, self._every_seconds, self._clock = workload, say, every_seconds, clock
        self._told_returns = 0
        self._loss = RunningMean(_LOSS_MEMORY)
        self._said_at = clock()
        self._steps, self._seconds = 0, 0.0  # since the line before
        self._steady: tuple[int, float] | None = None  # a step and when it ended: the first one compiles

    def begin(self, journal: Journal) -> None:
        self._loss = RunningMean(_LOSS_MEMORY)
        for report in journal.history:
            self._loss.add(report.metrics["loss"])
        label = self._workload.label
        if len(journal.returns) > self._told_returns:
            newest = journal.returns[-1]
            self._say(
                f"{label}: {newest.fault}; back to step {journal.done:,}, leaving out "
                f"{len(newest.skipped)} batches (return {len(journal.returns)})"
            )
        elif journal.done:
            self._say(f"{label}: goes on after step {journal.done:,} of {journal.steps:,}")
        self._told_returns = len(journal.returns)
        self._said_at, self._steps, self._seconds, self._steady = self._clock(), 0, 0.0, None

    def step(self, report: Report, state: Any, journal: Journal) -> None:
        del state, journal
        self._loss.add(report.metrics["loss"])
        self._steps, self._seconds = self._steps + 1, self._seconds + report.seconds
        now = self._clock()
        if self._steady is None:
            self._steady = (report.step, now)
        if report.step < report.steps and now - self._said_at < self._every_seconds:
            return
        self._say(self._line(report, now))
        self._said_at, self._steps, self._seconds = now, 0, 0.0

    def _line(self, report: Report, now: float) -> str:
        own, mean_seconds = self._workload, max(1e-9, self._seconds / self._steps)
        parts = [f"{own.label} step {report.step:,}/{report.steps:,}", f"loss {self._loss.mean:.4f}"]
        parts += [f"{name} {value:.4f}" for name, value in report.metrics.items() if name != "loss"]
        if own.rate_factor is not None:
            parts.append(f"rate x{own.rate_factor(report.step - 1):.3g}")
        parts += [f"{mean_seconds * 1e3:,.0f} ms", f"{own.tokens / mean_seconds:,.0f} tokens/s"]
        if own.ceiling_flops is not None:
            parts.append(f"{own.ceiling_name} {own.flops / mean_seconds / own.ceiling_flops:.1%}")
        parts.append(f"{memory_bytes(own.devices) / 1e9:.1f} GB")
        left = report.steps - report.step
        if left:
            parts.append(f"ETA {clock_time(left * self._seconds_per_step(report, now))}")
        return " | ".join(parts)

    def _seconds_per_step(self, report: Report, now: float) -> float:
        """Everything between steps included: evaluations, saves."""
        assert self._steady is not None
        first, since = self._steady
        return (now - since) / (report.step - first) if report.step > first else report.seconds


class StepFile:
    """A JSON line a step, and one for each observation and return, in a file that survives a kill.

    What a resumed run or a return makes untrue is taken out, so the file always tells one course.
    """

    def __init__(self, path: Path, tokens: int) -> None:
        self._path, self._tokens = path, tokens
        self._file: TextIO | None = None

    def begin(self, journal: Journal) -> None:
        self.close()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".partial")
        with fresh.open("w", encoding="utf-8") as lines:
            lines.writelines(
                f"{json.dumps({'event': 'returned', 'step': each.step, 'fault': each.fault})}\n"
                for each in journal.returns
            )
            for report in journal.history:
                lines.write(self._line(report))
                lines.writelines(_observations(journal, report.step))
        fresh.replace(self._path)
        self._file = self._path.open("a", encoding="utf-8")

    def step(self, report: Report, state: Any, journal: Journal) -> None:
        del state
        assert self._file is not None
        self._file.write(self._line(report))
        self._file.writelines(_observations(journal, report.step))
        self._file.flush()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _line(self, report: Report) -> str:
        rate = round(self._tokens / max(1e-9, report.seconds), 1)
        values = {"seconds": round(report.seconds, 6), "tokens_per_second": rate, **report.metrics}
        return json.dumps({"step": report.step, **values}) + "\n"


def _observations(journal: Journal, step: int) -> list[str]:
    found = []
    for each in reversed(journal.observations):
        if each["step"] < step:
            break
        if each["step"] == step:
            found.append(json.dumps({"event": "observed", **each}, ensure_ascii=False) + "\n")
    return found[::-1]


def rate_factor(config: OptimizerConfig, steps: int) -> Callable[[int], float]:
    """The schedule's factor on every rate, by step counting from 0."""
    factor = resolve(config).schedule.factor(steps)
    return lambda step: float(factor(jnp.asarray(step)))
