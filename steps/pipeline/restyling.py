"""Instruction sets whose words go through the constitutional loop: a stage a set and split, none unless asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artifacts.build import Build, Stage
from nanocode.config import InstructionSource
from steps.pipeline.asking import Asking, make_by_asking
from steps.pipeline.generation import Split, decontaminated
from steps.pipeline.run import Run


def restyle_instructions(run: Run, split: Split, sets: Mapping[str, str], tokenizer: str, soul: str) -> dict[str, str]:
    """Of the converted `sets` those that the config wants restyled, by name: conversations or preference pairs."""
    return {
        source.name: _restyle_set(run, source, split, sets[source.name], tokenizer, soul)
        for source in run.config.constitution.sources
        if source.restyle and (split == "sft" or source.preference_share > 0)
    }


def _restyle_set(run: Run, source: InstructionSource, split: Split, converted: str, tokenizer: str, soul: str) -> str:
    constitution = run.config.constitution
    decisive = ("accept_score", "max_revisions", "max_length_ratio", "critic", "reviser")
    own = constitution.identity()
    return make_by_asking(
        run,
        Stage(
            "restyle_instructions",
            "restyled",
            run.name(f"restyled-{source.name}-{split}"),
            "steps.restyle_instructions",
            {
                "restyling": {name: own[name] for name in decisive},
                "source": {"name": source.name, "preference_share": source.preference_share},
                "seed": run.config.seed,
                "split": split,
                "context_tokens": run.config.model.context_tokens,
            }
            | decontaminated(run.config),
            {"instructions": converted, "tokenizer": tokenizer, "soul": soul},
        ),
        f"restyled {source.name} {split}",
        lambda making, asking: _restyle(run, source, split, making, asking),
    )


def _restyle(run: Run, source: InstructionSource, split: Split, making: Build, asking: Asking) -> Mapping[str, Any]:
    from steps import restyle_instructions as stage

    config = run.config
    inputs = stage.Inputs(
        split=split,
        conversations=making.inputs["instructions"],
        soul=making.inputs["soul"] / "SOUL.md",
        tokenizer=making.inputs["tokenizer"],
        context_tokens=config.model.context_tokens,
        output=making.output,
        ledger_folder=asking.ledger_folder,
        earlier=asking.earlier,
        decontamination=config.data.decontamination,
    )
    watching = stage.Watching(asking.report, run.stop_asked(making), run.say)
    return stage.run(config.constitution, source, config.seed, inputs, watching)
