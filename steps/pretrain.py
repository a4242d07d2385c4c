"""Stage: pretraining. Tokens, packing plans and a tokenizer in; a base model, its metrics and some samples out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flax import nnx

from nanocode.config import ConfigError, ModelConfig, PretrainConfig
from nanocode.data.plans import open_plans
from nanocode.data.rows import PackedRows
from nanocode.data.tokens import open_tokens
from nanocode.evaluation.bits_per_byte import bits_per_byte
from nanocode.inference.engine import Engine
from nanocode.model.depth import horizon
from nanocode.model.gpt import GPT
from nanocode.model.weights import save_model
from nanocode.tokenizer import Tokenizer
from nanocode.training.batches import batches
from nanocode.training.length import pretraining_length
from nanocode.training.losses import language_model_loss
from nanocode.training.metrics import rate_factor
from nanocode.training.optimizer import build_optimizer
from nanocode.training.probes import Probe
from nanocode.training.recipes import scaled_by_depth
from nanocode.training.sharding import stack_layout
from nanocode.training.stage import Running, run_training

_SAMPLE_PROMPTS = ("def ", "The ", "import ", "class ", "return ", "If ", "    for ", "This module ")


@dataclass(frozen=True)
class Inputs:
    """`tokens` and `plans` map each source's name to its folder, `weights` to its share of the tokens."""

    tokens: Mapping[str, Path]
    plans: Mapping[str, Path]
    weights: Mapping[str, float]
    tokenizer: Path
    output: Path


def run(
    config: PretrainConfig, model_config: ModelConfig, seed: int, inputs: Inputs, running: Running
) -> dict[str, Any]:
    """Train from scratch and write the model folder, ``metrics.jsonl`` and ``samples.json``; returns the metrics.

    Raises TrainingError when the loss diverges, ConfigError, Interrupted when asked to stop (state saved).
    """
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    depth_rules = horizon(model_config, tokenizer.vocab_size)
    length = pretraining_length(config, model_config, tokenizer.vocab_size)
    steps, batch_rows = length.steps, length.batch_rows
    optimizer_config, lr_factor = scaled_by_depth(config, depth_rules)
    model = GPT(model_config, tokenizer.vocab_size, nnx.Rngs(seed))
    sources = [
        _rows(name, folder, inputs.plans[name], inputs.weights[name]) for name, folder in sorted(inputs.tokens.items())
    ]
    text_tokens = sum(len(source) * source.row_tokens for source in sources)
    running.say(
        f"pretrain: {model.parameter_count:,} parameters, {steps:,} steps of {batch_rows:,} x "
        f"{model_config.context_tokens:,} tokens, {text_tokens:,} tokens of text"
    )
    trained = run_training(
        model,
        lambda own, batch: (language_model_loss(own, batch), {}),
        build_optimizer(optimizer_config, steps, lr_factor, **stack_layout(running.mesh)),
        batches(sources, batch_rows, seed),
        steps,
        tokens_per_step=batch_rows * model_config.context_tokens,
        label="pretrain",
        running=running,
        guard=config.guard,
        probes=_probes(config, inputs, tokenizer, seed, running.compute.keep_best),
        rate_factor=rate_factor(optimizer_config, steps),
    )
    running.pause("after training, before the samples")
    save_model(trained.model, inputs.output)
    trained.write_metrics(inputs.output)
    samples = _samples(trained.model, tokenizer, config.samples, seed)
    text = json.dumps(samples, indent=2, ensure_ascii=False)
    (inputs.output / "samples.json").write_text(text + "\n", encoding="utf-8")
    return trained.metrics


def _rows(name: str, tokens: Path, plan: Path, weight: float) -> PackedRows:
    shards = open_tokens(tokens, "train")
    return PackedRows(name, weight, shards, open_plans(plan, shards))


def _probes(
    config: PretrainConfig, inputs: Inputs, tokenizer: Tokenizer, seed: int, keep_best: str | None
) -> list[Probe]:
    """Held-out bits per byte of each source, and continuations, at the intervals of the config.

    Raises ConfigError when the checkpoint to keep is to be judged by something else.
    """
    found: list[Probe] = []
    figures = [f"bpb_{name}" for name in sorted(inputs.tokens)] if config.eval_every_steps is not None else []
    if keep_best is not None and keep_best not in figures:
        cure = f"it measures {', '.join(figures)}" if figures else "set pretrain.eval_every_steps"
        raise ConfigError(f"compute.keep_best = {keep_best!r} is no figure of pretraining's evaluations: {cure}")
    if config.eval_every_steps is not None:
        texts = {
            name: _held_out(folder, tokenizer, config.eval_bytes) for name, folder in sorted(inputs.tokens.items())
        }
        found.append(
            Probe(
                config.eval_every_steps,
                lambda model: {
                    f"bpb_{name}": bits_per_byte(model, tokenizer, own, config.eval_bytes)
                    for name, own in texts.items()
                },
            )
        )
    if config.sample_every_steps is not None:
        found.append(
            Probe(
                config.sample_every_steps,
                lambda model: {"samples": _samples(model, tokenizer, config.samples, seed)},
            )
        )
    return found


def _held_out(folder: Path, tokenizer: Tokenizer, max_bytes: int) -> list[str]:
    """The first held-out documents of a source, as many as `max_bytes` bytes take."""
    found: list[str] = []
    left = max_bytes
    for shard in open_tokens(folder, "validation"):
        for index in range(shard.documents):
            if left <= 0:
                return found
            found.append(tokenizer.decode(shard.document(index)[1:].tolist()))  # without its <|bos|>
            left -= len(found[-1].encode())
    return found


def _samples(model: GPT, tokenizer: Tokenizer, count: int, seed: int) -> list[dict[str, str]]:
    """Continuations at temperature 0.8: for people to look at."""
    prompts = _SAMPLE_PROMPTS[:count]
    if not prompts:
        return []
    ids = [[tokenizer.bos, *tokenizer.encode(prompt)] for prompt in prompts]
    replies = Engine(model, tokenizer).generate(ids, max_new_tokens=48, temperature=0.8, seed=seed)
    return [
        {"prompt": prompt, "continuation": tokenizer.decode(reply)}
        for prompt, reply in zip(prompts, replies, strict=True)
    ]
