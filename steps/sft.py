"""Stage: supervised fine-tuning on tool-use conversations, loss on what the assistant says alone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from nanocode.config import SftConfig
from nanocode.conversation import from_json, render
from nanocode.data.packing import plan_conversations
from nanocode.data.rows import PackedRows
from nanocode.data.tokens import TokenShard, TokenShardWriter, complete_tokens, open_tokens
from nanocode.model.weights import load_model, save_model
from nanocode.tokenizer import Tokenizer
from nanocode.training.batches import batches
from nanocode.training.losses import language_model_loss
from nanocode.training.metrics import rate_factor
from nanocode.training.optimizer import build_optimizer
from nanocode.training.sharding import stack_layout
from nanocode.training.stage import Running, run_training


class NoConversations(ValueError):
    """Nothing to train on in a register or an instruction set that the config asks for."""


@dataclass(frozen=True)
class Instructions:
    """The folder of a converted instruction set, and its share of the rows, relative to 1 for all rollouts."""

    name: str
    folder: Path
    weight: float


@dataclass(frozen=True)
class Inputs:
    """`rollouts` are the folders with ``conversations.jsonl``, in shard order; `scratch` is for this stage alone."""

    model: Path
    tokenizer: Path
    rollouts: Sequence[Path]
    output: Path
    scratch: Path
    instructions: Sequence[Instructions] = ()


def run(config: SftConfig, seed: int, inputs: Inputs, running: Running) -> dict[str, Any]:
    """Fine-tune every weight and write the model folder; returns the metrics.

    Raises NoConversations, TrainingError when the loss diverges, Interrupted when asked to stop (state saved).
    """
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    model = load_model(inputs.model)
    row_tokens = model.shape.tokens + 1
    shares = {"stock": config.stock_fraction, "soul": 1.0 - config.stock_fraction}
    packing = _Packing(inputs.scratch, tokenizer, row_tokens)
    sources = [
        packing.rows(register, share, _of_register(inputs.rollouts, register))
        for register, share in shares.items()
        if share > 0
    ]
    sources += [
        packing.rows(f"set-{each.name}", each.weight, read_conversations([each.folder])) for each in inputs.instructions
    ]
    dropped = sum(source.too_long for source in sources)
    batch_rows = max(1, config.batch_tokens // model.shape.tokens)
    running.say(
        f"sft: {sum(len(source.rows) for source in sources):,} rows of {row_tokens:,} tokens, "
        f"{dropped:,} conversations too long, {config.steps:,} steps of {batch_rows:,} rows"
    )
    trained = run_training(
        model,
        lambda own, batch: (language_model_loss(own, batch), {}),
        build_optimizer(config.optimizer, config.steps, **stack_layout(running.mesh)),
        batches([source.rows for source in sources], batch_rows, seed),
        config.steps,
        tokens_per_step=batch_rows * model.shape.tokens,
        label="sft",
        running=running,
        guard=config.guard,
        rate_factor=rate_factor(config.optimizer, config.steps),
    )
    save_model(trained.model, inputs.output)
    trained.write_metrics(inputs.output)
    trained_share = fmean(source.trained_share for source in sources)
    return trained.metrics | {"too_long": dropped, "trained_token_share": trained_share}


@dataclass(frozen=True)
class _Packed:
    """Packed conversations of a register or a set, how many were longer than a row, and the share of trained tokens."""

    rows: PackedRows
    too_long: int
    trained_share: float


@dataclass(frozen=True)
class _Packing:
    """Where and how conversations become rows."""

    scratch: Path
    tokenizer: Tokenizer
    row_tokens: int

    def rows(self, name: str, share: float, conversations: Iterable[dict[str, Any]]) -> _Packed:
        """Render conversations into a token shard and pack them: in memory stands one at a time."""
        folder, tokenizer = self.scratch / name, self.tokenizer
        folder.mkdir()
        with TokenShardWriter(folder, "train-00000", tokenizer.vocab_size, masked=True) as writer:
            for row in conversations:
                rendered = render(from_json(row["messages"]), tokenizer)
                writer.write(
                    np.array(rendered.ids), np.array([len(rendered.ids)]), np.array(rendered.mask, dtype=np.uint8)
                )
        complete_tokens(folder, tokenizer.vocab_size, {"train-00000": writer.entry}, masked=True)
        (shard,) = open_tokens(folder, "train")
        plan, too_long = plan_conversations(shard.lengths, self.row_tokens)
        if len(plan) == 0:
            raise NoConversations(f"no conversation in {name} fits {self.row_tokens} tokens")
        rows = PackedRows(name, share, [shard], [plan], tokenizer.pad)
        return _Packed(rows, len(too_long), _trained_tokens(shard, too_long) / (len(rows) * self.row_tokens))


def _of_register(rollouts: Sequence[Path], register: str) -> Iterator[dict[str, Any]]:
    return (row for row in read_conversations(rollouts) if row["register"] == register)


def _trained_tokens(shard: TokenShard, left_out: np.ndarray) -> int:
    """How many tokens of the conversations that were not left out the model is trained to produce."""
    assert shard.mask is not None
    by_conversation = np.add.reduceat(shard.mask, shard.starts[:-1], dtype=np.int64)
    return int(by_conversation.sum() - by_conversation[left_out].sum())


def read_conversations(rollouts: Sequence[Path]) -> Iterator[dict[str, Any]]:
    """The rows of every shard's ``conversations.jsonl``, in order."""
    for folder in rollouts:
        with (folder / "conversations.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                yield json.loads(line)
