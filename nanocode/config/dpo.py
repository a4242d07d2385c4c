"""`[dpo]`: alignment with preference pairs."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.section import Section
from nanocode.config.training import GuardConfig


class DpoConfig(Section):
    beta: float = Field(0.1, gt=0)
    nll_weight: float = Field(1.0, ge=0, description="RPO: weight of the chosen reply's mean negative log-likelihood")
    steps: int = Field(80, ge=1)
    batch_pairs: int = Field(16, ge=2)
    lr: float = Field(1e-4, gt=0)
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.95, ge=0, lt=1)
    warmup_steps: int = Field(5, ge=0)
    guard: GuardConfig = GuardConfig()
    max_chosen_drop_nats: float = Field(2.0, gt=0, description="stop when the mean chosen log-prob falls this far")
    retention_tasks: int = Field(
        64, ge=0, description="validation tasks generated before and after; 0: no retention gate"
    )
    max_retention_loss: float = Field(0.10, ge=0, le=1, description="task success that may be lost on them")
