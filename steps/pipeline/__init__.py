"""The pipeline: which stage reads which config, which inputs and which module; the only place that joins the two
layers.

Every function takes a `Run` and the record digests of its inputs and returns the record digest of its output, made or
found. The work itself stands in the stage's own module, imported when it is needed, so that a cached run never loads
JAX.
"""

from steps.pipeline.data import fit_tokenizer, import_file, import_soul, plan_rows, shard_data, tokenise
from steps.pipeline.earlier_answers import tidy as tidy_ledgers
from steps.pipeline.generation import gather_rollouts, generate_rollouts, rollout_shards
from steps.pipeline.instructions import convert_instructions
from steps.pipeline.releasing import Released, assemble, evaluate, release
from steps.pipeline.restyling import restyle_instructions
from steps.pipeline.reuse import check_reuse
from steps.pipeline.run import ROOT, Run, read_names, say
from steps.pipeline.training import dpo, pretrain, reference, sft

__all__ = [
    "ROOT",
    "Released",
    "Run",
    "assemble",
    "check_reuse",
    "convert_instructions",
    "dpo",
    "evaluate",
    "fit_tokenizer",
    "gather_rollouts",
    "generate_rollouts",
    "import_file",
    "import_soul",
    "plan_rows",
    "pretrain",
    "read_names",
    "reference",
    "release",
    "restyle_instructions",
    "rollout_shards",
    "say",
    "sft",
    "shard_data",
    "tidy_ledgers",
    "tokenise",
]
