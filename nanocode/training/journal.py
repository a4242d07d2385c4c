"""What a run remembers of itself beside its weights, and keeps in every checkpoint: so that the metrics, the guards and
the choice of batches of an interrupted run equal those of one that nobody touched.

A run takes its batches in order and leaves out those that a return to a good checkpoint skipped. Which batch step `s`
trains on therefore follows from the journal alone, whatever checkpoint was returned to and however often the run was
killed.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple


class Report(NamedTuple):
    """One optimizer step, as the guards, the log and the metrics file see it."""

    step: int  # steps taken, counting from 1
    steps: int
    seconds: float  # of wall time: batch, step and reading its values
    metrics: dict[str, float]  # "loss" and what the loss function named


@dataclass(frozen=True)
class Return:
    """A fault, and the batches that are left out since."""

    step: int  # the step that showed it, counting from 1
    fault: str
    skipped: tuple[int, ...]


@dataclass
class Journal:
    """The steps of the weights at hand, the returns that led here, and what was observed on the way.

    `executed` counts every optimizer step that was computed, abandoned ones included: it never falls, so it numbers the
    checkpoints. `observations` are the results of evaluations and samples, each with its "step".
    """

    steps: int
    history: list[Report] = field(default_factory=list)
    returns: list[Return] = field(default_factory=list)
    observations: list[dict[str, Any]] = field(default_factory=list)
    executed: int = 0

    @property
    def done(self) -> int:
        """Optimizer steps in the weights at hand."""
        return len(self.history)

    @property
    def skipped(self) -> list[int]:
        """Batches that are left out, in order."""
        return sorted({batch for each in self.returns for batch in each.skipped})

    def batch_of(self, step: int) -> int:
        """The number of the batch that optimizer step `step` (from 0) trains on; may lie beyond the last one."""
        return _batch_of(step, self.skipped)

    def source_of(self, batch: int) -> int:
        """The batch that stands under a number: beyond the last one the first ones come again, skipped ones do not."""
        if batch < self.steps:
            return batch
        skipped = set(self.skipped)
        again = [each for each in range(self.steps) if each not in skipped] or range(self.steps)
        return again[(batch - self.steps) % len(again)]

    def add(self, report: Report) -> None:
        self.history.append(report)
        self.executed += 1

    def rewind(self, done: int) -> None:
        """Forget all steps after the first `done`."""
        del self.history[done:]
        self.observations = [each for each in self.observations if each["step"] <= done]

    def position(self) -> dict[str, Any]:
        """Where the weights stand: what tells a checkpoint of this run from one of an abandoned course."""
        return {"step": self.done, "skipped": self.skipped}

    def figures(self) -> dict[str, float]:
        """What evaluations measured of the weights at hand."""
        return {
            name: value
            for each in self.observations
            if each["step"] == self.done
            for name, value in each.items()
            if isinstance(value, float) and math.isfinite(value)
        }

    def is_best(self, figure: str) -> bool:
        """Whether an evaluation of the weights at hand found the lowest value of that name so far."""
        value = self.figures().get(figure, math.inf)
        earlier = [each[figure] for each in self.observations if figure in each and each["step"] < self.done]
        return all(value < other for other in earlier) and value < math.inf

    def passes(self, position: Mapping[str, Any]) -> bool:
        """Whether this run's own course, from the start, leads through `position`."""
        if position["step"] == 0:
            return True
        newest = [_batch_of(position["step"] - 1, skipped) for skipped in (self.skipped, position["skipped"])]
        own, other = ([batch for batch in each if batch < newest[0]] for each in (self.skipped, position["skipped"]))
        return newest[0] == newest[1] and own == other

    def copy(self) -> Journal:
        """One that later steps do not change."""
        return Journal(self.steps, list(self.history), list(self.returns), list(self.observations), self.executed)

    def to_json(self) -> str:
        return json.dumps(
            {
                "steps": self.steps,
                "executed": self.executed,
                "history": [[report.seconds, report.metrics] for report in self.history],
                "returns": [asdict(each) for each in self.returns],
                "observations": self.observations,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Journal:
        fields = json.loads(text)
        steps = fields["steps"]
        return cls(
            steps,
            [Report(index, steps, *entry) for index, entry in enumerate(fields["history"], start=1)],
            [Return(each["step"], each["fault"], tuple(each["skipped"])) for each in fields["returns"]],
            fields["observations"],
            fields["executed"],
        )

    def lines(self) -> Iterator[str]:
        """JSON lines of what came out of every step, the returns in between. No times: the same run, the same bytes."""
        returns = sorted(self.returns, key=lambda each: each.step)
        for report in self.history:
            while returns and returns[0].step <= report.step:
                yield json.dumps({"event": "returned", **asdict(returns.pop(0))})
            yield json.dumps({"step": report.step, **report.metrics})
        for each in returns:
            yield json.dumps({"event": "returned", **asdict(each)})


def _batch_of(step: int, skipped: Sequence[int]) -> int:
    """The `step`-th number (from 0) that is not in `skipped`, which is sorted."""
    batch = step
    for each in skipped:
        batch += each <= batch
    return batch
