"""Looking at a model while it trains: evaluations and samples every so many steps. They change nothing.

What they find goes into the run's journal, so an interrupted run has all of it, and into the log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nanocode.model.gpt import GPT
from nanocode.training.journal import Journal, Report
from nanocode.training.step import TrainState


@dataclass(frozen=True)
class Probe:
    """Something to find out about a model every `every_steps` steps: names and plain data."""

    every_steps: int
    look: Callable[[GPT], Mapping[str, Any]]


class Probes:
    """Runs probes on the weights of a run: a listener of the training loop."""

    def __init__(
        self,
        probes: Sequence[Probe],
        model_of: Callable[[TrainState], GPT],
        label: str,
        say: Callable[[str], None],
    ) -> None:
        self._probes, self._model_of, self._label, self._say = probes, model_of, label, say

    def begin(self, journal: Journal) -> None:
        del journal

    def step(self, report: Report, state: TrainState, journal: Journal) -> None:
        due = [probe for probe in self._probes if report.step % probe.every_steps == 0]
        if not due:
            return
        model = self._model_of(state)
        found: dict[str, Any] = {}
        for probe in due:
            found |= probe.look(model)
        journal.observations.append({"step": report.step, **found})
        for line in _lines(found):
            self._say(f"{self._label} step {report.step:,}: {line}")


def _lines(found: Mapping[str, Any]) -> list[str]:
    """The numbers in one line, everything else in a line for each of its parts."""
    numbers = [f"{name} {value:.4f}" for name, value in found.items() if isinstance(value, float)]
    others = [
        f"{name} {part!r}"
        for name, value in found.items()
        if not isinstance(value, float)
        for part in (value if isinstance(value, list) else [value])
    ]
    return ([" | ".join(numbers)] if numbers else []) + others
