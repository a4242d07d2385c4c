"""`[sft]`: fine-tuning on conversations."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.section import Section
from nanocode.config.training import GuardConfig, OptimizerConfig


class SftConfig(Section):
    steps: int = Field(500, ge=1)
    batch_tokens: int = Field(2**19, ge=16)
    optimizer: OptimizerConfig = OptimizerConfig()
    stock_fraction: float = Field(0.5, ge=0, le=1, description="share of conversations in the stock register")
    guard: GuardConfig = GuardConfig()
