"""`[evaluation]`: what every model is asked."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.section import Section


class EvaluationConfig(Section):
    tasks: int = Field(256, ge=1, description="held-out tasks; every model sees the same ones")
    seed: int = Field(0, ge=0, description="of the tasks and of sampling; not the run's, so that runs can be compared")
    held_out_bytes: int = Field(1_000_000, gt=0, description="per register, for bits per byte")
    sampled_temperature: float = Field(1.0, gt=0)
    max_turns: int = Field(6, ge=1)
    max_new_tokens: int = Field(96, ge=1, description="per assistant turn")
