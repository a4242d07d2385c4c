"""Public instruction sets become conversations: one stage a set, and none where the config names none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artifacts.build import Build, Stage
from nanocode.config import InstructionSource
from steps.pace import Pace
from steps.pipeline.data import import_file
from steps.pipeline.run import Run, require_sandbox

_OF_LATER_STAGES = ("weight", "restyle", "preference_share")


def convert_instructions(run: Run, tokenizer: str) -> dict[str, str]:
    """The conversations of every set of ``[[constitution.sources]]``, by its name."""
    return {source.name: convert_set(run, source, tokenizer) for source in run.config.constitution.sources}


def convert_set(run: Run, source: InstructionSource, tokenizer: str) -> str:
    """One set's conversations. A stage that is stopped or killed goes on after the last block that was saved."""
    from steps import convert_instructions as stage

    config = run.config
    manifest = stage.manifest(source)
    raw = import_file(run, "source", f"instructions-source-{source.name}", "manifest.json", manifest)
    own = {key: value for key, value in source.identity().items() if key not in _OF_LATER_STAGES}

    def produce(making: Build) -> Mapping[str, Any]:
        if source.kind == "messages":
            require_sandbox()
        saving = _Saving(run, making)
        inputs = stage.Inputs(
            tokenizer=making.inputs["tokenizer"],
            output=making.output,
            scratch=making.scratch,
            context_tokens=config.model.context_tokens,
            manifest=manifest,
            state=saving.restored(),
            workspaces=stage.memory_folder(),
        )
        try:
            return stage.run(source, config.data.decontamination, inputs, run.say, saving.offer, run.stop_asked(making))
        except stage.Interrupted:
            saving.save()
            raise

    return run.make(
        Stage(
            "convert_instructions",
            "instructions",
            run.name(f"instructions-{source.name}"),
            "steps.convert_instructions",
            {
                "source": own,
                "decontamination": config.data.decontamination.identity(),
                "context_tokens": config.model.context_tokens,
            },
            {"raw": raw, "tokenizer": tokenizer},
        ),
        produce,
    )


class _Saving:
    """The output so far with what it takes to go on, saved now and then and when the stage is stopped."""

    def __init__(self, run: Run, making: Build) -> None:
        self._making, self._say = making, run.say
        self._pace = Pace(run.config.compute.checkpoint_every_seconds)
        self._offered: tuple[int, Mapping[str, Any]] | None = None

    def restored(self) -> Mapping[str, Any] | None:
        """What an earlier attempt saved last, its output put back."""
        saved = self._making.checkpoints.latest()
        if saved is None:
            return None
        self._making.checkpoints.restore(saved, self._making.output)
        self._say(f"convert_instructions: {saved.step:,} rows were done before")
        return saved.details

    def offer(self, rows: int, state: Mapping[str, Any]) -> None:
        self._offered = rows, state
        if self._pace.is_due:
            with self._pace.saving():
                self.save()

    def save(self) -> None:
        if self._offered is not None:
            rows, state = self._offered
            self._making.checkpoints.save(rows, self._making.output, state)
            self._making.checkpoints.prune(1)
