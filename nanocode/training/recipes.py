"""The optimizer's settings by recipe: what a config leaves out follows from here, in one place.

Sources: karpathy/nanochat at 92d63d4; salmanmohammadi/nanocode as published, for the groups its model has.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import jax

from nanocode.config import OptimizerConfig, PretrainConfig, Section
from nanocode.model.depth import Horizon
from nanocode.training.schedule import trapezoid


@dataclass(frozen=True)
class AdamSettings:
    """One group of AdamW. `width_scaled`: times (width / 768)^-1/2; `batch_scaled`: times the batch's factor."""

    lr: float
    beta1: float = 0.8
    beta2: float = 0.95
    epsilon: float = 1e-10
    weight_decay: float = 0.0
    width_scaled: bool = False
    batch_scaled: bool = True


@dataclass(frozen=True)
class MuonSettings:
    """The group of the block matrices. Fields as `OptimizerConfig` has them, there with ``muon_`` before the name.

    A momentum that is None at the start or the end is `momentum` there.
    """

    lr: float = 0.02
    momentum: float = 0.95
    momentum_start: float | None = None
    momentum_end: float | None = None
    momentum_warmup_steps: int = 0
    iteration: Literal["polar_express", "newton_schulz"] = "polar_express"
    bfloat16: bool = False
    equalise: bool = False
    rescale: bool = False
    normalise: bool = False
    normalise_beta2: float = 0.9
    weight_decay: float = 0.0
    cautious: bool = False
    decay_schedule: Literal["constant", "cosine"] = "constant"


@dataclass(frozen=True)
class ScheduleSettings:
    """What all rates share: a factor, and the trapezoid over the run."""

    warmup_steps: int
    warmdown_fraction: float
    final_lr_fraction: float
    lr_scale: float = 1.0

    def factor(self, steps: int) -> Callable[[jax.Array], jax.Array]:
        """The trapezoid over a run of `steps`."""
        return trapezoid(steps, self.warmup_steps, self.warmdown_fraction, self.final_lr_fraction)


@dataclass(frozen=True)
class OptimizerSettings:
    """Everything decided."""

    schedule: ScheduleSettings
    muon: MuonSettings
    embedding: AdamSettings
    unembedding: AdamSettings
    value_embeddings: AdamSettings
    stream_scale: AdamSettings
    embedding_scale: AdamSettings
    smear_backout: AdamSettings


PLAIN = OptimizerSettings(
    schedule=ScheduleSettings(warmup_steps=0, warmdown_fraction=0.5, final_lr_fraction=0.0),
    muon=MuonSettings(),
    embedding=AdamSettings(0.3),
    unembedding=AdamSettings(0.008),
    value_embeddings=AdamSettings(0.3),
    stream_scale=AdamSettings(0.2),
    embedding_scale=AdamSettings(0.2),
    smear_backout=AdamSettings(0.2),
)
"""Muon without its additions, one AdamW for the rest."""

NANOCHAT = OptimizerSettings(
    schedule=ScheduleSettings(warmup_steps=40, warmdown_fraction=0.65, final_lr_fraction=0.05),
    muon=MuonSettings(
        momentum=0.97,
        momentum_start=0.85,
        momentum_end=0.90,
        momentum_warmup_steps=400,
        bfloat16=True,
        equalise=True,
        rescale=True,
        normalise=True,
        cautious=True,
        decay_schedule="cosine",
    ),
    embedding=AdamSettings(0.3, beta2=0.995, weight_decay=0.001, width_scaled=True),
    unembedding=AdamSettings(0.008, beta2=0.96, weight_decay=0.01, width_scaled=True),
    value_embeddings=AdamSettings(0.15, beta2=0.995, weight_decay=0.01, width_scaled=True),
    stream_scale=AdamSettings(0.005, weight_decay=0.05),
    embedding_scale=AdamSettings(0.5, beta1=0.96),
    smear_backout=AdamSettings(0.2, batch_scaled=False),
)

NANOCODE = replace(
    NANOCHAT,
    schedule=ScheduleSettings(warmup_steps=0, warmdown_fraction=0.4, final_lr_fraction=0.0),
    muon=MuonSettings(momentum_start=0.85, momentum_warmup_steps=300, iteration="newton_schulz", bfloat16=True),
    embedding=AdamSettings(0.3, width_scaled=True),
    unembedding=AdamSettings(0.004, width_scaled=True),
)
"""Its model has tables and matrices alone; a group that a config adds to them goes by nanochat's values."""

RECIPES = {"plain": PLAIN, "nanochat": NANOCHAT, "nanocode": NANOCODE}

_Settings = TypeVar("_Settings", ScheduleSettings, MuonSettings, AdamSettings)


def resolve(config: OptimizerConfig) -> OptimizerSettings:
    """The settings of the config's recipe, with what the config gives itself in their place."""
    recipe = RECIPES[config.recipe]
    return OptimizerSettings(
        schedule=_given(recipe.schedule, config),
        muon=_given(recipe.muon, config, prefix="muon_"),
        embedding=_given(recipe.embedding, config.embedding),
        unembedding=_given(recipe.unembedding, config.unembedding),
        value_embeddings=_given(recipe.value_embeddings, config.value_embeddings),
        stream_scale=_given(recipe.stream_scale, config.stream_scale),
        embedding_scale=_given(recipe.embedding_scale, config.embedding_scale),
        smear_backout=_given(recipe.smear_backout, config.smear_backout),
    )


def scaled_by_depth(config: PretrainConfig, rules: Horizon) -> tuple[OptimizerConfig, float]:
    """The pretraining optimizer with the decay that follows from the depth, and the factor on its rates.

    nanochat: both go with the root of the batch, whoever sets it. nanocode: rates as published, no decay. plain: as
    nanochat with the batch of the depth rules; as written with another.
    """
    optimizer, batch_tokens = config.optimizer, config.batch_tokens
    if optimizer.recipe == "nanocode" or (optimizer.recipe == "plain" and batch_tokens is not None):
        return optimizer, 1.0
    share = math.sqrt((batch_tokens or rules.batch_tokens) / rules.batch_tokens)
    if optimizer.muon_weight_decay is None:
        optimizer = optimizer.model_copy(update={"muon_weight_decay": rules.muon_weight_decay * share})
    return optimizer, rules.lr_factor * share


def _given(settings: _Settings, section: Section, prefix: str = "") -> _Settings:
    values = {field.name: getattr(section, prefix + field.name) for field in fields(settings)}
    return replace(settings, **{name: value for name, value in values.items() if value is not None})
