"""Which stages of a run a user wants to keep although their code was edited: by step, or artifact by artifact."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from artifacts.build import Produce, RunInfo, Stage
from artifacts.repository import Repository
from nanocode.config import Config, ConfigError, InstructionSource
from steps.pipeline.run import Run
from steps.pipeline.survey import walk


@dataclass(frozen=True)
class _Roll(Run):
    """A run that only notes its stages. Nothing is read, no store is asked."""

    stages: list[Stage] = field(default_factory=list)

    def make(self, stage: Stage, produce: Produce) -> str:
        del produce
        self.stages.append(stage)
        return stage.name


def stages_of(config: Config) -> list[Stage]:
    """Every stage of a run of the config but the raw sources, in order; inputs are named by artifact."""

    def shards(run: Run, source: str) -> str:
        return run.make(Stage("shard_data", "shards", run.name(f"shards-{source}"), "", {}), lambda making: None)

    def conversations(run: Run, source: InstructionSource, tokenizer: str) -> str:
        inputs = {"tokenizer": tokenizer}
        name = run.name(f"instructions-{source.name}")
        return run.make(Stage("convert_instructions", "instructions", name, "", {}, inputs), lambda making: None)

    roll = _Roll(config, Repository(None), RunInfo("", "", ""))  # type: ignore[arg-type]  # asked for nothing
    walk(roll, shards, conversations)
    return roll.stages


def check_reuse(names: frozenset[str], config: Config) -> None:
    """Raise ConfigError, with the nearest name, for a name that no stage or artifact of the config's run has."""
    stages = stages_of(config)
    for name in sorted(names):
        if not any(stage.is_among({name}) for stage in stages):
            known = list(dict.fromkeys([stage.step for stage in stages] + [stage.name for stage in stages]))
            short = [each.partition("/")[2] for each in known if "/" in each]
            close = difflib.get_close_matches(name, known + short, n=1, cutoff=0.5)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
            raise ConfigError(f"--reuse {name}: no stage or artifact of this run is called that: {hint}")
