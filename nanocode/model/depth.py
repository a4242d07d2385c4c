"""The one dial: what follows from `model.depth` by the rules of the chosen recipe.

nanochat (karpathy/nanochat at 92d63d4): width = 64 x depth rounded up to whole heads of 128; training tokens = 12 x
(block matrices + unembedding); batch, learning-rate factor and weight decay scale from depth 12 by the horizon (Power
Lines). nanocode (salmanmohammadi/nanocode): heads of 256; d24 is 2,048 wide; tokens = 8 x all parameters; batch 2^20;
no decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanocode.config import ModelConfig

_PAD_VOCAB_TO = 64

SMEAR_CHANNELS = 24
"""Channels of the embedding that decide how much of the token before is mixed in."""


@dataclass(frozen=True)
class Shape:
    """A model's dimensions. ``vocab`` is padded to a multiple of 64; ``tokens`` is the context length."""

    layers: int
    width: int
    heads: int
    vocab: int
    tokens: int
    mlp_width: int
    tied: bool

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the matrices inside the blocks: those that Muon trains."""
        return self.layers * (4 * self.width**2 + 2 * self.width * self.mlp_width)

    @property
    def embedding_parameters(self) -> int:
        return self.vocab * self.width * (1 if self.tied else 2)

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs a token: 6 x (matrices + unembedding) + 12 x layers x width x context, causal half not taken
        off.
        """
        return 6 * (self.matrix_parameters + self.vocab * self.width) + 12 * self.layers * self.width * self.tokens


@dataclass(frozen=True)
class Horizon:
    """How long and how hard to train: what the depth decides unless the config does."""

    tokens: int
    batch_tokens: int
    steps: int
    lr_factor: float
    muon_weight_decay: float


def shape(config: ModelConfig, vocab_size: int) -> Shape:
    """The dimensions that `config` asks for. Raises ValueError if the width does not suit heads or smear."""
    width = config.width or _width(config)
    head_width = 128 if config.recipe == "nanochat" else 256
    heads = config.heads or max(1, width // head_width)
    if width % heads or (width // heads) % 2:
        raise ValueError(f"model.width {width} does not divide into {heads} heads of even width")
    if config.smear and width < SMEAR_CHANNELS:
        raise ValueError(f"model.width must be at least {SMEAR_CHANNELS} with smear, not {width}")
    return Shape(
        layers=config.depth,
        width=width,
        heads=heads,
        vocab=-(-vocab_size // _PAD_VOCAB_TO) * _PAD_VOCAB_TO,
        tokens=config.context_tokens,
        mlp_width=config.mlp_ratio * width,
        tied=config.tie_embeddings,
    )


def _width(config: ModelConfig) -> int:
    if config.recipe == "nanocode" and config.depth == 24:
        return 2_048
    return math.ceil(64 * config.depth / 128) * 128


def horizon(config: ModelConfig, vocab_size: int) -> Horizon:
    """Training tokens, batch and optimizer scales for a model of this depth."""
    own = shape(config, vocab_size)
    if config.recipe == "nanocode":
        tokens = 8 * (own.matrix_parameters + own.embedding_parameters)
        return Horizon(tokens, 2**20, math.ceil(tokens / 2**20) + 1, 1.0, 0.0)
    reference = shape(config.model_copy(update={"depth": 12, "width": None, "heads": None}), vocab_size)
    tokens = 12 * (own.matrix_parameters + own.vocab * own.width)
    ratio = tokens / (12 * (reference.matrix_parameters + reference.vocab * reference.width))
    batch = 2 ** round(math.log2(2**19 * ratio**0.383))
    scale = math.sqrt(batch / 2**19)
    return Horizon(tokens, batch, tokens // batch, scale, 0.28 * scale / ratio)
