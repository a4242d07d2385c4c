"""What DPO cost in solved tasks, and when that is too much for a release to go out without a word, or at all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nanocode.config import EvaluationConfig
from nanocode.evaluation.paired import one_line


class RetentionLost(ValueError):
    """DPO lost more than the gate allows, and the config says that there is no release then."""


def retention_fault(retention: Mapping[str, Any], config: EvaluationConfig) -> str | None:
    """The warning when greedy success on the held-out tasks fell by more points than the gate, else None."""
    pair = retention.get("greedy")
    if pair is None or -100 * pair["difference"] <= config.retention_gate_points:
        return None
    return (
        f"tasks solved after DPO against before: {one_line(pair)}; evaluation.retention_gate_points is "
        f"{config.retention_gate_points:g}: lower dpo.lr or dpo.steps, or raise dpo.nll_weight"
    )
