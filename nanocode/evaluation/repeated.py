"""Several samples of each task: which tasks the first one solves, and what k of them are worth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nanocode.evaluation.agent_tasks import Episode
from nanocode.evaluation.pass_at_k import mean_over_problems, pass_at_k, pass_hat_k


def outcomes(rounds: Sequence[Sequence[Episode]]) -> dict[str, Any]:
    """Which tasks the first sample solved; with more, pass@k and pass^k over all of them."""
    found: dict[str, Any] = {"solved": {each.task.id: each.verdict.success for each in rounds[0]}}
    samples = len(rounds)
    if samples > 1:
        passed = [sum(each.verdict.success for each in of_task) for of_task in zip(*rounds, strict=True)]
        found["samples"] = {
            "n": samples,
            **{
                name: {str(k): mean_over_problems(estimate, samples, passed, k).to_json() for k in _ks(samples)}
                for name, estimate in (("pass_at_k", pass_at_k), ("pass_hat_k", pass_hat_k))
            },
        }
    return found


def _ks(samples: int) -> list[int]:
    """Powers of two, and all of them."""
    return sorted({*(1 << power for power in range(samples.bit_length())), samples})
