"""`[evaluation]`: what every model is asked.

Benchmarks that are downloaded are named by a path, and a path decides nothing: the content of their files enters the
cache key of an evaluation, with `benchmark_identity`, and only where they are set.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from nanocode.config.section import Section, not_identity


class EvaluationConfig(Section):
    tasks: int = Field(256, ge=1, description="held-out tasks; every model sees the same ones")
    seed: int = Field(0, ge=0, description="of the tasks and of sampling; not the run's, so that runs can be compared")
    held_out_bytes: int = Field(1_000_000, gt=0, description="per register, for bits per byte")
    sampled_temperature: float = Field(1.0, gt=0)
    max_turns: int = Field(6, ge=1)
    max_new_tokens: int = Field(96, ge=1, description="per assistant turn")
    retention_gate_points: float = not_identity(
        5.0, ge=0, le=100, description="of greedy task success that DPO may lose on held-out tasks without a warning"
    )
    retention_gate_fails: bool = not_identity(False, description="past the gate no release, in place of a warning")
    core_bundle: str | None = not_identity(None, description="folder of CORE's data, with core.yaml; left out: no CORE")
    core_examples_per_task: int | None = not_identity(None, ge=1, description="rows of each CORE task; left out: all")
    human_eval: str | None = not_identity(None, description="HumanEval.jsonl or .jsonl.gz; left out: no HumanEval")
    human_eval_samples: int = not_identity(1, ge=1, description="programs written for each problem")
    human_eval_temperature: float = not_identity(0.0, ge=0, description="of sampling them; 0: greedy")

    @model_validator(mode="after")
    def _benchmarks_are_whole(self) -> EvaluationConfig:
        if self.core_bundle is None and self.core_examples_per_task is not None:
            raise ValueError("core_examples_per_task says how much of CORE is run, and core_bundle is not set")
        if self.human_eval_samples > 1 and self.human_eval_temperature == 0:
            raise ValueError("greedy samples are all the same: set human_eval_temperature above 0, or one sample")
        return self

    def benchmark_identity(self) -> dict[str, Any]:
        """What decides the figures of the downloaded benchmarks, beside their content; nothing where none is set."""
        found: dict[str, Any] = {}
        if self.core_bundle is not None:
            found["core"] = {"examples_per_task": self.core_examples_per_task}
        if self.human_eval is not None:
            found["human_eval"] = {"samples": self.human_eval_samples, "temperature": self.human_eval_temperature}
        return found
