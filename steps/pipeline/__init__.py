"""The pipeline: which stage reads which config, which inputs and which module; the only place that joins the two
layers.

Every function takes a `Run` and the record digests of its inputs and returns the record digest of its output, made or
found. The work itself stands in the stage's own module, imported when it is needed, so that a cached run never loads
JAX. The names below are imported at their first use, too: a flow starts a process for each task, and a task needs few.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "benchmarks": ("import_benchmarks",),
    "data": ("fit_tokenizer", "import_file", "import_soul", "plan_rows", "shard_data", "tokenise"),
    "earlier_answers": ("tidy_ledgers",),
    "generation": ("gather_rollouts", "generate_rollouts", "rollout_shards"),
    "instructions": ("convert_instructions",),
    "releasing": ("Released", "assemble", "evaluate", "release"),
    "restyling": ("restyle_instructions",),
    "reuse": ("check_reuse",),
    "run": ("ROOT", "Run", "read_names", "say"),
    "training": ("dpo", "pretrain", "reference", "sft"),
}
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
