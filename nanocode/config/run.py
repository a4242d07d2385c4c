"""A whole run: the file, section by section."""

from __future__ import annotations

from pydantic import Field

from nanocode.config.compute import ComputeConfig
from nanocode.config.constitution import ConstitutionConfig
from nanocode.config.data import DataConfig
from nanocode.config.dpo import DpoConfig
from nanocode.config.evaluation import EvaluationConfig
from nanocode.config.model import ModelConfig
from nanocode.config.pretrain import PretrainConfig
from nanocode.config.section import Section
from nanocode.config.sft import SftConfig
from nanocode.config.store import StoreConfig
from nanocode.config.tokenizer import TokenizerConfig


class Config(Section):
    """A whole run."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", description="releases are numbered under this name")
    seed: int = Field(1, ge=0)
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig
    pretrain: PretrainConfig = PretrainConfig()
    constitution: ConstitutionConfig
    sft: SftConfig = SftConfig()
    dpo: DpoConfig = DpoConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    compute: ComputeConfig = ComputeConfig()
    store: StoreConfig = StoreConfig()
