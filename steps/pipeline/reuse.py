"""Which stages there are, and reading which of them a user wants to keep although their code was edited."""

from __future__ import annotations

import difflib

from nanocode.config import ConfigError

# As they call themselves, in the order of a run; a test holds them against a survey of it.
STEPS = (
    "import_file",
    "shard_data",
    "fit_tokenizer",
    "tokenise",
    "plan_rows",
    "pretrain",
    "evaluate",
    "generate_rollouts",
    "gather_rollouts",
    "sft",
    "reference",
    "dpo",
    "release",
)


def check_step(name: str) -> str:
    """The name itself. Raises ConfigError for a stage that there is not, with the nearest name."""
    if name not in STEPS:
        close = difflib.get_close_matches(name, STEPS, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(STEPS)}"
        raise ConfigError(f"no stage is called {name!r}: {hint}")
    return name


def read_reuse(text: str) -> frozenset[str]:
    """The stages of `pretrain, sft`. Raises ConfigError for one that there is not."""
    return frozenset(check_step(part.strip()) for part in text.split(",") if part.strip())
