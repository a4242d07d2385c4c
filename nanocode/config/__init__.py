"""The typed configuration: one TOML file describes a whole run, one section a stage, one module a section.

Every section is a frozen pydantic model with units in its names and refuses unknown keys; `nanocode.config_file` reads
the file and explains what is wrong with it. Here is only where each name is from.
"""

from nanocode.config.compute import ComputeConfig
from nanocode.config.constitution import ConstitutionConfig, EndpointConfig, InstructionSource
from nanocode.config.data import (
    PUBLISHED_LIBRARY,
    AnySource,
    DataConfig,
    DecontaminationConfig,
    EvaluationSet,
    FilesSource,
    FilterAction,
    FilterConfig,
    HubSource,
    PythonDocsSource,
    PythonStdlibSource,
    Source,
    TableSource,
)
from nanocode.config.dpo import DpoConfig
from nanocode.config.evaluation import EvaluationConfig
from nanocode.config.model import ModelConfig
from nanocode.config.pretrain import PretrainConfig
from nanocode.config.run import Config
from nanocode.config.section import NOT_IDENTITY, ConfigError, Section, not_identity
from nanocode.config.sft import SftConfig
from nanocode.config.store import StoreConfig
from nanocode.config.tokenizer import TokenizerConfig
from nanocode.config.training import AdamGroupConfig, GuardConfig, OptimizerConfig

__all__ = [
    "NOT_IDENTITY",
    "PUBLISHED_LIBRARY",
    "AdamGroupConfig",
    "AnySource",
    "ComputeConfig",
    "Config",
    "ConfigError",
    "ConstitutionConfig",
    "DataConfig",
    "DecontaminationConfig",
    "DpoConfig",
    "EndpointConfig",
    "EvaluationConfig",
    "EvaluationSet",
    "FilesSource",
    "FilterAction",
    "FilterConfig",
    "GuardConfig",
    "HubSource",
    "InstructionSource",
    "ModelConfig",
    "OptimizerConfig",
    "PretrainConfig",
    "PythonDocsSource",
    "PythonStdlibSource",
    "Section",
    "SftConfig",
    "Source",
    "StoreConfig",
    "TableSource",
    "TokenizerConfig",
    "not_identity",
]
