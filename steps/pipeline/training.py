"""Pretraining, SFT, the reference log-probs and DPO."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from artifacts.build import Build, Stage
from steps.pipeline.data import plan_rows, tokenise
from steps.pipeline.run import Run, by_name, require_sandbox, roles


def pretrain(run: Run, shards: Mapping[str, str], tokenizer: str) -> str:
    """The base model. Tokens and plans are artifacts of their own: another `[pretrain]` section finds both again, and
    another context the tokens.
    """
    config = run.config
    weights = {source.name: source.weight for source in config.data.sources}
    tokens = {name: tokenise(run, name, digest, tokenizer) for name, digest in shards.items()}
    plans = {name: plan_rows(run, name, digest) for name, digest in tokens.items()}

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import pretrain as stage

        inputs = stage.Inputs(
            by_name(making, "tokens"), by_name(making, "plan"), weights, making.inputs["tokenizer"], making.output
        )
        return _counted(making, stage.run(config.pretrain, config.model, config.seed, inputs, run.running(making)))

    identity = {"model": config.model.identity(), "pretrain": config.pretrain.identity()}
    return run.make(
        Stage(
            "pretrain",
            "model",
            run.name("base"),
            "steps.pretrain",
            identity | {"seed": config.seed, "weights": weights},
            roles("tokens", tokens) | roles("plan", plans) | {"tokenizer": tokenizer},
        ),
        produce,
    )


def _counted(making: Build, metrics: Mapping[str, Any]) -> Mapping[str, Any]:
    """The metrics as they are; their tokens go into the cost."""
    making.cost["tokens_trained"] = metrics["tokens"]
    return metrics


def sft(run: Run, base: str, tokenizer: str, conversations: str, instructions: Mapping[str, str] | None = None) -> str:
    """The base model fine-tuned on the rollouts and, with `instructions`, on those sets by their weights."""
    config, instructions = run.config, instructions or {}
    weights = {source.name: source.weight for source in config.constitution.sources if source.name in instructions}

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import sft as stage

        inputs = stage.Inputs(
            making.inputs["base"],
            making.inputs["tokenizer"],
            [making.inputs["conversations"]],
            making.output,
            making.scratch,
            [
                stage.Instructions(name, folder, weights[name])
                for name, folder in by_name(making, "instructions").items()
            ],
        )
        return _counted(making, stage.run(config.sft, config.seed, inputs, run.running(making)))

    return run.make(
        Stage(
            "sft",
            "model",
            run.name("sft"),
            "steps.sft",
            {"sft": config.sft.identity(), "seed": config.seed} | ({"instruction_weights": weights} if weights else {}),
            {"base": base, "tokenizer": tokenizer, "conversations": conversations}
            | roles("instructions", instructions),
        ),
        produce,
    )


def reference(run: Run, model: str, tokenizer: str, pairs: str) -> str:
    """The SFT model's log-probs of every pair, computed once however often DPO is tuned."""

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import dpo as stage

        inputs = stage.Inputs(
            making.inputs["model"], making.inputs["tokenizer"], [making.inputs["pairs"]], making.output
        )
        return stage.run_reference(inputs, run.running(making))

    return run.make(
        Stage(
            "reference",
            "log_probs",
            run.name("reference"),
            "steps.dpo",
            {},
            {"model": model, "tokenizer": tokenizer, "pairs": pairs},
        ),
        produce,
    )


def dpo(run: Run, model: str, tokenizer: str, pairs: str, reference: str) -> str:
    config = run.config

    def produce(making: Build) -> Mapping[str, Any]:
        from steps import dpo as stage

        inputs = stage.Inputs(
            making.inputs["model"],
            making.inputs["tokenizer"],
            [making.inputs["pairs"]],
            making.output,
            making.inputs["reference"],
        )
        require_sandbox()
        return _counted(making, stage.run(config.dpo, config.evaluation, config.seed, inputs, run.running(making)))

    decoding = {"max_turns": config.evaluation.max_turns, "max_new_tokens": config.evaluation.max_new_tokens}
    return run.make(
        Stage(
            "dpo",
            "model",
            run.name("dpo"),
            "steps.dpo",
            {"dpo": config.dpo.identity(), "seed": config.seed, "retention": decoding},
            {"model": model, "tokenizer": tokenizer, "pairs": pairs, "reference": reference},
        ),
        produce,
    )
