"""The curves of a run in TensorBoard or Weights & Biases, for those who ask: neither is needed, neither is installed
unasked.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from nanocode.config import ConfigError
from nanocode.training.journal import Journal, Report

TrackerName = Literal["tensorboard", "wandb"]
_MODULES = {"tensorboard": "tensorboardX", "wandb": "wandb"}


class Tracker(Protocol):
    """A listener of the training loop that has to be closed."""

    def begin(self, journal: Journal) -> None: ...

    def step(self, report: Report, state: Any, journal: Journal) -> None: ...

    def close(self) -> None: ...


def open_trackers(names: Sequence[TrackerName], folder: Path, label: str) -> list[Tracker]:
    """The trackers of a run. They write below `folder`. Raises ConfigError naming the extra that is not installed."""
    modules = []
    for name in names:
        try:
            modules.append(importlib.import_module(_MODULES[name]))
        except ModuleNotFoundError:
            raise ConfigError(
                f"compute.trackers asks for {name}, and {_MODULES[name]} is not installed: "
                f"pip install 'nanocode[{name}]', or take it out of the list"
            ) from None
    made: list[Tracker] = []
    for name, module in zip(names, modules, strict=True):
        made.append(_TensorBoard(module, folder, label) if name == "tensorboard" else _WandB(module, folder, label))
    return made


class _TensorBoard:
    def __init__(self, module: Any, folder: Path, label: str) -> None:
        self._module, self._folder = module, folder / "tensorboard" / label
        self._writer: Any = None

    def begin(self, journal: Journal) -> None:
        """A new file; what earlier ones say of later steps counts no more."""
        self.close()
        # Its files are named after the second in which they were opened: two in one second would be one.
        self._writer = self._module.SummaryWriter(
            str(self._folder), purge_step=journal.done + 1, filename_suffix=f".{journal.executed}"
        )

    def step(self, report: Report, state: Any, journal: Journal) -> None:
        del state
        for name, value in _scalars(report, journal):
            self._writer.add_scalar(name, value, report.step)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class _WandB:
    """Weights & Biases takes no step back, so the step is a value of its own, and the x axis of all others."""

    def __init__(self, module: Any, folder: Path, label: str) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._run = module.init(project="nanocode", name=label, dir=str(folder))
        self._run.define_metric("*", step_metric="step")

    def begin(self, journal: Journal) -> None:
        del journal

    def step(self, report: Report, state: Any, journal: Journal) -> None:
        del state
        self._run.log({"step": report.step, **dict(_scalars(report, journal))})

    def close(self) -> None:
        self._run.finish()


def _scalars(report: Report, journal: Journal) -> Iterator[tuple[str, float]]:
    yield "seconds", report.seconds
    yield from report.metrics.items()
    for each in journal.observations[-1:]:
        if each["step"] == report.step:
            yield from ((name, value) for name, value in each.items() if isinstance(value, float))
