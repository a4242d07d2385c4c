"""Stage: the words of an instruction set, kept to the constitution. Converted conversations in; accepted ones out.

What the set says is the draft: the critic judges it, the reviser works on its words until both the critic and the rules
accept. Calls and results stay those that were executed. By a hash of its name a conversation is for SFT, which gets the
accepted version, or for preferences, which get (accepted version, failing original): nobody is graded on pairs whose
better side it was taught.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nanocode.config import ConstitutionConfig, DecontaminationConfig, InstructionSource
from nanocode.constitution.clients import Clients
from nanocode.constitution.earlier import Source
from nanocode.constitution.gate import Bounds
from nanocode.constitution.output import AcceptedFile, PairFile, Sink
from nanocode.constitution.rollout import Given, Revising, Rollout, restyle
from nanocode.constitution.soul import Soul
from nanocode.constitution.summary import source_counts
from nanocode.conversation import from_json
from nanocode.data.shards import split_of
from nanocode.tokenizer import Tokenizer
from steps.constitutional import Asked, Watching, Work, carry_out, sampling_seed, share_of_budget

Split = Literal["sft", "preference"]

# Other stages draw by a conversation's bare name: which pairs DPO holds out must not depend on which became pairs.
_HALVES = "restyle"


class NothingAccepted(ValueError):
    """A set of which no conversation keeps to the constitution, before or after revision."""


@dataclass(frozen=True)
class Inputs:
    """`conversations` is the folder of a converted set; `environment` holds the endpoints' keys; `earlier` are ledgers
    to look into before an endpoint is asked.
    """

    split: Split
    conversations: Path
    soul: Path
    tokenizer: Path
    context_tokens: int
    output: Path
    ledger_folder: Path
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    earlier: Sequence[Source] = ()
    decontamination: DecontaminationConfig = field(default_factory=DecontaminationConfig)


def run(
    config: ConstitutionConfig, source: InstructionSource, seed: int, inputs: Inputs, watching: Watching
) -> dict[str, Any]:
    """Write ``conversations.jsonl`` (split sft) or ``pairs.jsonl`` (preference), ``report.json``, ``calibration.json``.

    Returns the metrics that ``report.json`` holds. Raises what `carry_out` raises, NothingAccepted, SoulError.
    """
    soul = Soul.load(inputs.soul)
    total = sum(1 for _ in _given(inputs, source))
    share = {"sft": 1 - source.preference_share, "preference": source.preference_share}[inputs.split]
    most = total if source.max_rows is None else round(source.max_rows * share)
    asked = Asked(
        "restyle_instructions",
        # Nobody drafts: the generator is not asked, and need not be there.
        config.model_copy(update={"generator": config.reviser}),
        seed,
        inputs.soul,
        inputs.output,
        inputs.ledger_folder / f"{inputs.split}-{source.name}.jsonl",
        share_of_budget(config, most),
        inputs.environment,
        inputs.earlier,
        inputs.decontamination,
    )
    inputs.output.mkdir(parents=True, exist_ok=True)
    revising = Revising(config.accept_score, config.max_revisions)
    tasks, sink = _tasks(inputs, source, soul, revising, seed), _sink(config, soul, inputs)
    metrics = carry_out(asked, tasks, total, soul, sink, watching)
    if inputs.split == "sft" and not metrics["gate"].get("kept"):
        raise NothingAccepted(f"no conversation of {source.name!r} was accepted; dropped: {metrics['dropped']}")
    return metrics


def _tasks(inputs: Inputs, source: InstructionSource, soul: Soul, revising: Revising, seed: int) -> Iterator[Work]:
    for given in _given(inputs, source):
        yield functools.partial(_restyle, given, soul, revising, sampling_seed(seed, given.id))


async def _restyle(given: Given, soul: Soul, revising: Revising, seed: int, clients: Clients) -> Rollout:
    return await restyle(given, clients, soul, revising, seed)


def _given(inputs: Inputs, source: InstructionSource) -> Iterator[Given]:
    """The conversations of this split, one in memory at a time."""
    with (inputs.conversations / "conversations.jsonl").open(encoding="utf-8", newline="\n") as lines:
        for row in map(json.loads, lines):
            is_preference = split_of(f"{_HALVES}/{row['id']}", source.preference_share) == "validation"
            if is_preference == (inputs.split == "preference"):
                messages = tuple(from_json(row["messages"]))
                yield Given(row["id"], row["family"], row["variant"], messages, row["provenance"])


class _Sourced:
    """A sink whose metrics say whose rows were kept: counted by licence and by source from the file that it wrote."""

    def __init__(self, sink: Sink, path: Path) -> None:
        self._sink, self._path = sink, path

    def take(self, outcome: Rollout | None) -> None:
        self._sink.take(outcome)

    def finish(self) -> dict[str, Any]:
        metrics = self._sink.finish()
        with self._path.open(encoding="utf-8", newline="\n") as lines:
            return metrics | source_counts(map(json.loads, lines))


def _sink(config: ConstitutionConfig, soul: Soul, inputs: Inputs) -> Sink:
    tokenizer = Tokenizer.load(inputs.tokenizer / "tokenizer.json")
    if inputs.split == "sft":
        file = AcceptedFile(inputs.output, soul, tokenizer, inputs.context_tokens)
        return _Sourced(file, inputs.output / "conversations.jsonl")
    bounds = Bounds(inputs.context_tokens, config.max_length_ratio, config.accept_score)
    return _Sourced(PairFile(inputs.output, soul, tokenizer, bounds), inputs.output / "pairs.jsonl")
