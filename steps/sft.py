"""Stage: supervised fine-tuning on tool-use conversations, loss on what the assistant says alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanocode.config import SftConfig
from nanocode.conversation import from_json, render
from nanocode.data.loader import RowSource
from nanocode.data.packing import pack_conversations
from nanocode.model.weights import load_model, save_model
from nanocode.tokenizer import Tokenizer
from nanocode.training.batches import batches
from nanocode.training.losses import language_model_loss
from nanocode.training.optimizer import build_optimizer
from nanocode.training.stage import Running, run_training


class NoConversations(ValueError):
    """Nothing to train on in a register that the config asks for."""


@dataclass(frozen=True)
class Inputs:
    """`rollouts` are the folders with ``conversations.jsonl``, in shard order."""

    model: Path
    tokenizer: Path
    rollouts: Sequence[Path]
    output: Path


def run(config: SftConfig, seed: int, inputs: Inputs, running: Running) -> dict[str, Any]:
    """Fine-tune every weight and write the model folder; returns the metrics.

    Raises NoConversations, TrainingError when the loss diverges, Interrupted when asked to stop (state saved).
    """
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    model = load_model(inputs.model)
    row_tokens = model.shape.tokens + 1
    shares = {"stock": config.stock_fraction, "soul": 1.0 - config.stock_fraction}
    sources, dropped = [], 0
    for register, share in shares.items():
        if share == 0:
            continue
        rendered = [
            render(from_json(row["messages"]), tokenizer)
            for row in read_conversations(inputs.rollouts)
            if row["register"] == register
        ]
        packed = pack_conversations(rendered, row_tokens, tokenizer.pad)
        if not len(packed.ids):
            raise NoConversations(f"no conversation in the {register} register fits {row_tokens} tokens")
        dropped += len(packed.dropped)
        sources.append(RowSource(register, share, packed.ids, packed.segments, packed.mask))
    batch_rows = max(1, config.batch_tokens // model.shape.tokens)
    running.say(
        f"sft: {sum(len(source.ids) for source in sources):,} rows of {row_tokens:,} tokens, "
        f"{dropped:,} conversations too long, {config.steps:,} steps of {batch_rows:,} rows"
    )
    trained = run_training(
        model,
        lambda own, batch: (language_model_loss(own, batch), {}),
        build_optimizer(config.optimizer, config.steps),
        batches(sources, batch_rows, seed),
        config.steps,
        tokens_per_step=batch_rows * model.shape.tokens,
        label="sft",
        running=running,
    )
    save_model(trained.model, inputs.output)
    trained_share = sum(float(source.mask.mean()) for source in sources if source.mask is not None) / len(sources)
    return trained.metrics | {"too_long": dropped, "trained_token_share": trained_share}


def read_conversations(rollouts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of every shard's ``conversations.jsonl``, in order."""
    for folder in rollouts:
        with (folder / "conversations.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
