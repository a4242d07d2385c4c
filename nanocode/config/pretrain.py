"""`[pretrain]`: the language model."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.section import Section, not_identity
from nanocode.config.training import GuardConfig, OptimizerConfig


class PretrainConfig(Section):
    steps: int | None = Field(None, ge=1, description="optimizer steps; left out, they follow from the depth")
    batch_tokens: int | None = Field(None, ge=16, description="tokens a step; left out, they follow from the depth")
    optimizer: OptimizerConfig = OptimizerConfig()
    samples: int = Field(4, ge=0, le=8, description="continuations written beside the model")
    guard: GuardConfig = GuardConfig()
    eval_every_steps: int | None = not_identity(None, ge=1, description="held-out bits per byte during training")
    eval_bytes: int = not_identity(200_000, gt=0, description="of each source, for eval_every_steps")
    sample_every_steps: int | None = not_identity(None, ge=1, description="continuations in the log")
