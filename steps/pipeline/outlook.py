"""What would become of one stage of a run, why, and what it is expected to take."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from artifacts.build import called
from artifacts.differences import Difference
from artifacts.explain import Explanation, listed
from artifacts.records import Provenance

State = Literal["cached", "reused", "runs", "follows", "blocked"]

# A stage takes in proportion to these values of its config, everything else being equal.
PROPORTIONAL = frozenset(
    {
        "pretrain.steps",
        "pretrain.batch_tokens",
        "sft.steps",
        "sft.batch_tokens",
        "dpo.steps",
        "dpo.batch_pairs",
        "constitution.sft_tasks",
        "constitution.preference_tasks",
        "evaluation.tasks",
    }
)
# Another value here makes it another piece of work, of which an earlier making says nothing.
OTHER_WORK = (
    "model.",
    "context_tokens",
    "source.",
    "tokenizer.",
    "constitution.generator.model",
    "constitution.critic.model",
    "constitution.reviser.model",
    "benchmarks",
)
NOT_COMPARED = Explanation(None)


@dataclass(frozen=True)
class Expected:
    """What a stage is expected to take: an estimate, with what it rests on."""

    seconds: float
    usd: float | None
    basis: str


@dataclass(frozen=True)
class Outlook:
    """What would become of one stage. `record` is the one found (cached, reused); `waits_for` maps roles to artifacts.

    `environment` says where this environment differs from the one that made the record that was found or compared
    with; that never makes a stage run. `devices` are those that it was made on. `obstacle`: why a run would end here.
    `saved_step`: the checkpoint that an interrupted making left to go on from.
    """

    step: str
    name: str
    state: State
    record: str | None = None
    explanation: Explanation = NOT_COMPARED
    waits_for: Mapping[str, str] | None = None
    expected: Expected | None = None
    environment: tuple[Difference, ...] = ()
    devices: tuple[str, ...] = ()
    obstacle: str = ""
    saved_step: int | None = None

    @property
    def would_be_made(self) -> bool:
        """Whether the stage is made, or may be."""
        return self.state in ("runs", "follows")

    def reasons(self, in_short: bool = False) -> list[str]:
        """Why it is not cached, one line each, its own reasons first; `in_short`, all edited modules on one."""
        if self.state == "cached":
            return []
        if self.obstacle:
            return [self.obstacle]
        own = self.explanation.lines(in_short)
        if self.state == "runs" and not own:
            own = ["its record is there, and its files are not whole"]
        waits = listed([*(self.waits_for or {}).values()])
        saved = [] if self.saved_step is None else [f"goes on from its checkpoint at {self.saved_step:,}"]
        return own + ([f"made again before it: {waits}"] if waits else []) + saved

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "step": self.step,
            "name": self.name,
            "state": self.state,
            "record": self.record,
            "why": self.reasons(),
            "waits_for": dict(self.waits_for or {}),
            "differences": self.explanation.to_json(),
            "expected": asdict(self.expected) if self.expected else None,
            "environment": [each.to_json() for each in self.environment],
            "devices": list(self.devices),
            "saved_step": self.saved_step,
        }


def expected(made: Provenance, changed: Iterable[Difference]) -> Expected | None:
    """The cost of a making, scaled by what changed where that is plain; None when it is another piece of work."""
    changed = list(changed)
    seconds = made.cost.get("wall_seconds")
    if seconds is None or any(each.path.startswith(OTHER_WORK) for each in changed):
        return None
    factor, scaled = 1.0, []
    for each in changed:
        if each.path in PROPORTIONAL:
            if not isinstance(each.old, int) or not isinstance(each.new, int):
                return None
            factor *= each.new / each.old
            scaled.append(each.path)
    usd = made.cost.get("usd")
    told = f", scaled by {' and '.join(scaled)}" if scaled else ""
    basis = f"estimate: what record {made.record[:12]} took{told}"
    return Expected(round(factor * seconds, 3), None if usd is None else factor * usd, basis)


def of_stage(outlooks: Iterable[Outlook], asked: str) -> list[Outlook]:
    """Those that a user may call `asked`."""
    return [each for each in outlooks if asked in called(each.step, each.name)]
