"""The one dial: what follows from `model.depth` by the rules of the chosen recipe.

nanochat (karpathy/nanochat at 92d63d4): width = 64 x depth rounded up to whole heads of 128; training tokens = 12 x
(block matrices + unembedding); batch, learning-rate factor and weight decay scale from depth 12 by the horizon (Power
Lines). nanocode (salmanmohammadi/nanocode): heads of 256; d24 is 2,048 wide; tokens = 8 x all parameters; batch 2^20;
no decay.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from nanocode.config import ConfigError, ModelConfig

_PAD_VOCAB_TO = 64
_WINDOW_STEP = 128

SMEAR_CHANNELS = 24
"""Channels of the embedding that decide how much of the token before is mixed in."""

GATE_CHANNELS = 12
"""Channels of a block's input that decide how much of a value embedding is added."""


@dataclass(frozen=True)
class Shape:
    """A model's dimensions. ``vocab`` is padded to a multiple of 64; ``tokens`` is the context length.

    ``windows`` says for each layer how many positions back a token sees (None: all); ``value_layers`` which layers add
    value embeddings.
    """

    layers: int
    width: int
    heads: int
    kv_heads: int
    vocab: int
    tokens: int
    mlp_width: int
    tied: bool
    windows: tuple[int | None, ...]
    value_layers: tuple[int, ...]
    smear: bool
    layer_scalars: bool
    backout: bool

    @property
    def head_width(self) -> int:
        return self.width // self.heads

    @property
    def kv_width(self) -> int:
        """Of a token's keys, and of its values, over all heads."""
        return self.kv_heads * self.head_width

    @property
    def middle(self) -> int:
        """The layer behind which backout takes the stream."""
        return self.layers // 2

    @property
    def period(self) -> int:
        """The fewest layers that repeat up to the last: the same windows, value embeddings at the same places."""
        kinds = [(window, layer in self.value_layers) for layer, window in enumerate(self.windows)]
        return next(
            length
            for length in range(1, self.layers + 1)
            if self.layers % length == 0 and kinds == kinds[:length] * (self.layers // length)
        )

    @property
    def matrix_parameters(self) -> int:
        """Parameters of the matrices inside the blocks, gates included: those that Muon trains."""
        attention = 2 * self.width * (self.width + self.kv_width)
        gates = len(self.value_layers) * GATE_CHANNELS * self.kv_heads
        return self.layers * (attention + 2 * self.width * self.mlp_width) + gates

    @property
    def head_parameters(self) -> int:
        """Of the output table."""
        return self.vocab * self.width

    @property
    def embedding_parameters(self) -> int:
        """Of the input and output tables."""
        return self.head_parameters * (1 if self.tied else 2)

    @property
    def value_embedding_parameters(self) -> int:
        return len(self.value_layers) * self.vocab * self.kv_width

    @property
    def scalar_parameters(self) -> int:
        """Two weights a layer, the gate and strength of smear, the strength of backout."""
        return 2 * self.layers * self.layer_scalars + (SMEAR_CHANNELS + 1) * self.smear + self.backout

    @property
    def parameters(self) -> int:
        tables = self.embedding_parameters + self.value_embedding_parameters
        return self.matrix_parameters + tables + self.scalar_parameters

    @property
    def flops_per_token(self) -> int:
        """Training FLOPs a token as nanochat counts them: 6 a weight of a matrix product, 12 a channel of attention
        and position seen, the causal half not taken off. Table reads are free.
        """
        weights = self.matrix_parameters + self.head_parameters + SMEAR_CHANNELS * self.smear
        seen = sum(self.tokens if window is None else min(window, self.tokens) for window in self.windows)
        return 6 * weights + 12 * self.width * seen


@dataclass(frozen=True)
class Horizon:
    """How long and how hard to train: what the depth decides unless the config does."""

    tokens: int
    batch_tokens: int
    steps: int
    lr_factor: float
    muon_weight_decay: float


def shape(config: ModelConfig, vocab_size: int) -> Shape:
    """The dimensions that `config` asks for.

    Raises ConfigError when width, heads, key-value heads and the switches cannot go together, with the numbers to
    change.
    """
    width = config.width or _width(config)
    heads = config.heads or max(1, width // (128 if config.recipe == "nanochat" else 256))
    kv_heads = config.kv_heads or heads
    _check(config, width, heads, kv_heads)
    return Shape(
        layers=config.depth,
        width=width,
        heads=heads,
        kv_heads=kv_heads,
        vocab=-(-vocab_size // _PAD_VOCAB_TO) * _PAD_VOCAB_TO,
        tokens=config.context_tokens,
        mlp_width=config.mlp_ratio * width,
        tied=config.tie_embeddings,
        windows=_windows(config),
        value_layers=tuple(range((config.depth - 1) % 2, config.depth, 2)) if config.value_embeddings else (),
        smear=config.smear,
        layer_scalars=config.layer_scalars,
        backout=config.backout,
    )


def _check(config: ModelConfig, width: int, heads: int, kv_heads: int) -> None:
    if width % heads or (width // heads) % 2:
        raise ConfigError(
            f"model.width {width} does not divide into {heads} heads of even width: change model.width or model.heads"
        )
    if heads % kv_heads:
        divisors = [number for number in range(1, heads + 1) if heads % number == 0]
        raise ConfigError(
            f"model.kv_heads {kv_heads} does not divide model.heads {heads}: "
            f"take one of {', '.join(map(str, divisors))}"
        )
    needs = {"smear": SMEAR_CHANNELS * config.smear, "value_embeddings": GATE_CHANNELS * config.value_embeddings}
    for switch, channels in needs.items():
        if width < channels:
            raise ConfigError(f"model.width must be at least {channels} with {switch}, not {width}")


def _width(config: ModelConfig) -> int:
    if config.recipe == "nanocode" and config.depth == 24:
        return 2_048
    return math.ceil(64 * config.depth / 128) * 128


def _windows(config: ModelConfig) -> tuple[int | None, ...]:
    """The pattern laid over the layers, the last forced to L. S is a quarter of the context in whole steps of 128."""
    short = math.ceil(config.context_tokens / 4 / _WINDOW_STEP) * _WINDOW_STEP
    letters = [config.window_pattern[layer % len(config.window_pattern)] for layer in range(config.depth - 1)]
    return (*(short if letter == "S" else None for letter in letters), None)


def horizon(config: ModelConfig, vocab_size: int) -> Horizon:
    """Training tokens, batch and optimizer scales for a model of this depth."""
    own = shape(config, vocab_size)
    if config.recipe == "nanocode":
        tokens = 8 * own.parameters
        return Horizon(tokens, 2**20, math.ceil(tokens / 2**20) + 1, 1.0, 0.0)
    reference_size = {"depth": 12, "width": None, "heads": None, "kv_heads": None}
    reference = shape(config.model_copy(update=reference_size), vocab_size)
    tokens = 12 * (own.matrix_parameters + own.head_parameters)
    ratio = tokens / (12 * (reference.matrix_parameters + reference.head_parameters))
    batch = 2 ** round(math.log2(2**19 * ratio**0.383))
    scale = math.sqrt(batch / 2**19)
    return Horizon(tokens, batch, tokens // batch, scale, 0.28 * scale / ratio)
