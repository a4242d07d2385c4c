"""How long pretraining is: from the config, and from the depth where it leaves that open."""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import ConfigError, ModelConfig, PretrainConfig
from nanocode.model.depth import horizon


@dataclass(frozen=True)
class Length:
    steps: int
    batch_rows: int


def pretraining_length(config: PretrainConfig, model: ModelConfig, vocab_size: int) -> Length:
    """Steps and rows a step. A batch of one's own keeps the tokens that the depth asks for, in steps of another size.

    Raises ConfigError for a batch that is larger than the horizon.
    """
    rules = horizon(model, vocab_size)
    batch_tokens = config.batch_tokens or rules.batch_tokens
    by_depth = rules.steps if config.batch_tokens is None else rules.tokens // batch_tokens
    steps = config.steps or by_depth
    if steps < 1:
        raise ConfigError(
            f"pretrain: the horizon of {rules.tokens:,} tokens is less than one batch of {batch_tokens:,}: "
            "set pretrain.steps, or lower pretrain.batch_tokens"
        )
    return Length(steps, max(1, batch_tokens // model.context_tokens))
