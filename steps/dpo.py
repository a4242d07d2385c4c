"""Stage: preference optimisation against the frozen SFT model, and the reference log-probs that it needs.

`run_reference` scores every pair once under the SFT model; `run` trains. A pair's id is the sha256 of its token ids
and masks, so a cached score can only ever be joined to the very pair that it was computed for.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from nanocode.config import DpoConfig, EvaluationConfig
from nanocode.conversation import Rendered, from_json, render
from nanocode.data.shards import split_of
from nanocode.evaluation.agent_tasks import run_tasks, summarise
from nanocode.inference.engine import Engine
from nanocode.model.gpt import GPT
from nanocode.model.weights import load_model, save_model
from nanocode.tasks.registry import sample_tasks
from nanocode.tokenizer import Tokenizer
from nanocode.training.pairs import LogProbs, Pair, batch, plan, row_tokens
from nanocode.training.preference import DisplacementGuard, GuardTripped, pair_loss, score
from nanocode.training.schedule import trapezoid
from nanocode.training.stage import Running, run_training

# Pairs held out of training, by a hash of their task: preference accuracy is measured on them.
HELD_OUT_FRACTION = 0.2
_RETENTION_SEED = 0


@dataclass(frozen=True)
class Inputs:
    """`pairs` are the folders with ``pairs.jsonl``, in shard order; `reference` the folder that `run_reference`
    filled.
    """

    model: Path
    tokenizer: Path
    pairs: Sequence[Path]
    output: Path
    reference: Path | None = None


def read_pairs(folders: Sequence[Path], tokenizer: Tokenizer, part: Literal["train", "held_out", "all"]) -> list[Pair]:
    """The rendered pairs of a part, in file order. Raises ValueError for an identical pair or one with nothing to
    train.
    """
    found = []
    for folder in folders:
        with (folder / "pairs.jsonl").open(encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                held_out = split_of(row["task"], HELD_OUT_FRACTION) == "validation"
                if part != "all" and held_out != (part == "held_out"):
                    continue
                sides = [render(from_json(row[side]["messages"]), tokenizer) for side in ("chosen", "rejected")]
                found.append(_checked(row["id"], *sides))
    return found


def _checked(name: str, chosen: Rendered, rejected: Rendered) -> Pair:
    if chosen.ids == rejected.ids:
        raise ValueError(f"pair {name}: both sides are identical, there is nothing to prefer")
    if not sum(chosen.mask) or not sum(rejected.mask):
        raise ValueError(f"pair {name}: a side has no trained token")
    content = json.dumps([chosen.ids, chosen.mask, rejected.ids, rejected.mask])
    return Pair(hashlib.sha256(content.encode()).hexdigest(), chosen, rejected)


def run_reference(inputs: Inputs, running: Running) -> dict[str, Any]:
    """Write ``reference.json``: pair id -> [chosen, rejected] summed log-probs under the model."""
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    pairs = read_pairs(inputs.pairs, tokenizer, "all")
    scores = score(load_model(inputs.model), pairs, tokenizer.pad)
    running.say(f"dpo: scored {len(scores):,} pairs under the reference model")
    text = json.dumps({pair_id: list(values) for pair_id, values in sorted(scores.items())}, indent=0)
    (inputs.output / "reference.json").write_text(text + "\n", encoding="utf-8")
    return {"pairs": len(scores)}


def read_reference(folder: Path) -> dict[str, LogProbs]:
    """What `run_reference` wrote."""
    scores = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
    return {pair_id: LogProbs(*values) for pair_id, values in scores.items()}


def run(config: DpoConfig, evaluation: EvaluationConfig, seed: int, inputs: Inputs, running: Running) -> dict[str, Any]:
    """Train on the pairs and write the model folder; returns the metrics.

    Raises GuardTripped when the chosen replies become unlikely, or when the trained model solves too few of the
    validation tasks that the SFT model solves; ValueError without pairs; Interrupted when asked to stop (state saved).
    """
    if inputs.reference is None:
        raise ValueError("dpo needs the reference log-probs: run_reference first")
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    model, frozen = load_model(inputs.model), load_model(inputs.model)
    pairs = read_pairs(inputs.pairs, tokenizer, "train")
    reference = read_reference(inputs.reference)
    context = model.shape.tokens
    planned = plan(pairs, context, config.batch_pairs, config.steps, seed)
    running.say(f"dpo: {len(pairs):,} pairs, {config.steps:,} steps of {config.batch_pairs:,}")
    trained = run_training(
        model,
        pair_loss(config.beta, config.nll_weight),
        build_optimizer(config),
        lambda step: batch([pairs[index] for index in planned[step]], reference, context, tokenizer.pad),
        config.steps,
        tokens_per_step=round(fmean(_row_tokens(pairs, indices, context) for indices in planned)),
        label="dpo",
        running=running,
        guard=config.guard,
        guards=[DisplacementGuard(config.max_chosen_drop_nats)],
        rate_factor=lambda step: float(_rate(config)(jnp.asarray(step))),
    )
    retention = _retention(config, evaluation, frozen, trained.model, tokenizer, running)
    running.say(f"dpo: validation tasks solved {retention['before']:.3f} -> {retention['after']:.3f}")
    save_model(trained.model, inputs.output)
    trained.write_metrics(inputs.output)
    return trained.metrics | {"retention": retention}


def _row_tokens(pairs: Sequence[Pair], indices: Sequence[int], context: int) -> int:
    """Tokens that one batch computes, padding included."""
    return 2 * len(indices) * max(row_tokens(pairs[index], context) for index in indices)


def build_optimizer(config: DpoConfig) -> optax.GradientTransformation:
    """Adam over every weight, warmed up, then linear to zero."""
    rate = _rate(config)
    return optax.chain(
        optax.scale_by_adam(config.adam_beta1, config.adam_beta2),
        optax.scale_by_schedule(lambda step: -config.lr * rate(step)),
    )


def _rate(config: DpoConfig) -> Callable[[jax.Array], jax.Array]:
    return trapezoid(config.steps, config.warmup_steps, 1.0, 0.0)


def _retention(
    config: DpoConfig, evaluation: EvaluationConfig, before: GPT, after: GPT, tokenizer: Tokenizer, running: Running
) -> dict[str, float]:
    """Task success on the same validation tasks, greedy, of both models.

    Raises GuardTripped past the limit, Interrupted when asked to stop.
    """
    if not config.retention_tasks:
        return {"before": 0.0, "after": 0.0, "tasks": 0}
    tasks = sample_tasks("validation", config.retention_tasks, _RETENTION_SEED)
    rates = []
    for model in (before, after):
        running.pause("before the retention tasks, after training")
        episodes = run_tasks(
            Engine(model, tokenizer),
            tasks,
            temperature=0.0,
            max_turns=evaluation.max_turns,
            max_new_tokens=evaluation.max_new_tokens,
            seed=_RETENTION_SEED,
        )
        rates.append(summarise(episodes).success.value)
    if rates[0] - rates[1] > config.max_retention_loss:
        raise GuardTripped(
            f"task success fell from {rates[0]:.3f} to {rates[1]:.3f} on {len(tasks)} validation tasks "
            f"(limit {config.max_retention_loss}): lower dpo.lr or dpo.steps, or raise dpo.nll_weight"
        )
    return {"before": rates[0], "after": rates[1], "tasks": len(tasks)}
