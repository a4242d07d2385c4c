"""What each stage computes: rows, steps, tokens, FLOPs. Pure arithmetic on a config; nothing is read or compiled."""

from __future__ import annotations

from dataclasses import dataclass

from nanocode.config import Config
from nanocode.model.depth import shape
from nanocode.training.length import pretraining_length


@dataclass(frozen=True)
class PlannedStage:
    """One stage on the accelerator. `exact` is False where the data decide and this is the most that it can be."""

    name: str
    steps: int
    rows: int  # a step
    tokens: int
    flops: float
    exact: bool = True


def plan_stages(config: Config) -> list[PlannedStage]:
    """The stages that compute on the accelerator, in order.

    Raises ConfigError for a model whose sizes cannot go together and for a stage without a step.
    """
    model = shape(config.model, config.tokenizer.vocab_size)
    context = config.model.context_tokens

    def stage(name: str, steps: int, rows: int, flops_share: float = 1.0, exact: bool = True) -> PlannedStage:
        tokens = steps * rows * context
        return PlannedStage(name, steps, rows, tokens, tokens * model.flops_per_token * flops_share, exact)

    pretraining = pretraining_length(config.pretrain, config.model, config.tokenizer.vocab_size)
    pairs = config.dpo.batch_pairs
    scored = -(-config.constitution.preference_tasks // pairs)
    return [
        stage("pretrain", pretraining.steps, pretraining.batch_rows),
        stage("sft", config.sft.steps, max(1, config.sft.batch_tokens // context)),
        stage("reference", scored, 2 * pairs, _FORWARD_SHARE, exact=False),
        stage("dpo", config.dpo.steps, 2 * pairs, exact=False),
    ]


_FORWARD_SHARE = 1 / 3  # of training: a backward pass costs two forward ones
