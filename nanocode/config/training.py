"""What `[pretrain]`, `[sft]` and `[dpo]` share: the optimizer and the guard."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from nanocode.config.section import Section, not_identity


class AdamGroupConfig(Section):
    """One group of AdamW; what is left out follows from the recipe (`nanocode.training.recipes`)."""

    lr: float | None = Field(None, ge=0)
    beta1: float | None = Field(None, ge=0, lt=1)
    beta2: float | None = Field(None, ge=0, lt=1)
    epsilon: float | None = Field(None, gt=0)
    weight_decay: float | None = Field(None, ge=0)
    width_scaled: bool | None = Field(None, description="rate times (width / 768)^-1/2")
    batch_scaled: bool | None = Field(None, description="rate times the factor that follows from the batch")


class OptimizerConfig(Section):
    """Muon for the matrices of the blocks, AdamW in groups for the rest.

    What is left out follows from the recipe (`nanocode.training.recipes`).
    """

    recipe: Literal["plain", "nanochat", "nanocode"] = Field(
        "plain", description="plain: Muon without its additions and one AdamW; else as that project has it"
    )
    lr_scale: float = Field(1.0, gt=0, description="on every rate, the recipe's and those given here")
    muon_lr: float | None = Field(None, ge=0)
    muon_momentum: float | None = Field(None, ge=0, lt=1)
    muon_momentum_start: float | None = Field(None, ge=0, lt=1, description="at the first step")
    muon_momentum_end: float | None = Field(None, ge=0, lt=1, description="after the warm-down of the rate")
    muon_momentum_warmup_steps: int | None = Field(None, ge=0, description="from muon_momentum_start to muon_momentum")
    muon_iteration: Literal["polar_express", "newton_schulz"] | None = Field(None, description="how to orthogonalise")
    muon_bfloat16: bool | None = Field(None, description="orthogonalise in bfloat16, not in the parameters' type")
    muon_equalise: bool | None = Field(None, description="MuonEq: bring the rows to one norm before")
    muon_rescale: bool | None = Field(None, description="Muon+: to the norm of a semi-orthogonal matrix after")
    muon_normalise: bool | None = Field(None, description="NorMuon: divide lines by their running mean square")
    muon_normalise_beta2: float | None = Field(None, ge=0, lt=1)
    muon_weight_decay: float | None = Field(None, ge=0, description="left out: by the depth in pretraining, else 0")
    muon_cautious: bool | None = Field(None, description="decay only what the step shrinks anyway")
    muon_decay_schedule: Literal["constant", "cosine"] | None = Field(None, description="cosine: to 0 over the run")
    embedding: AdamGroupConfig = AdamGroupConfig()
    unembedding: AdamGroupConfig = AdamGroupConfig()
    value_embeddings: AdamGroupConfig = AdamGroupConfig()
    stream_scale: AdamGroupConfig = AdamGroupConfig()
    embedding_scale: AdamGroupConfig = AdamGroupConfig()
    smear_backout: AdamGroupConfig = AdamGroupConfig()
    warmup_steps: int | None = Field(None, ge=0)
    warmdown_fraction: float | None = Field(
        None, ge=0, le=1, description="share of the steps over which the rate falls"
    )
    final_lr_fraction: float | None = Field(None, ge=0, le=1)


class GuardConfig(Section):
    """When training returns to its last good checkpoint and leaves the suspect batches out."""

    spike_deviations: float = Field(
        12.0, gt=0, description="a loss so many mean deviations above its running mean is a fault ..."
    )
    spike_nats: float = Field(0.5, gt=0, description="... if it is also this far above")
    max_returns: int = not_identity(3, ge=0, description="after so many, the next fault ends the stage")
