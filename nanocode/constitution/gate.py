"""The pair gate: which (accepted, failing) versions of a conversation may teach a preference.

It looks at token ids after rendering, where it matters: texts that differ may render to equal ids, and a side that is
cut by the context or has nothing trained teaches nothing or harm (a public preference set was found to hold 7 %
token-identical pairs after truncation).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

from nanocode.constitution.rollout import Judgement
from nanocode.conversation import Conversation, Rendered, render
from nanocode.tokenizer import Tokenizer


@dataclass(frozen=True)
class Bounds:
    """`context_tokens`: the longest rendered side. `max_length_ratio`: trained tokens, longer side to shorter."""

    context_tokens: int
    max_length_ratio: float
    accept_score: int


@dataclass(frozen=True)
class Decision:
    """``refused``: None for a pair that may teach, else the reason to count. Lengths are in trained tokens."""

    refused: str | None
    chosen_tokens: int
    rejected_tokens: int


def decide(
    chosen: Conversation,
    rejected: Conversation,
    judged: tuple[Judgement, Judgement],
    tokenizer: Tokenizer,
    bounds: Bounds,
) -> Decision:
    """Judge one style pair; `judged` are the judgements of chosen and rejected."""
    ids_chosen, ids_rejected = render(chosen, tokenizer), render(rejected, tokenizer)
    lengths = sum(ids_chosen.mask), sum(ids_rejected.mask)
    refused = (
        _refused_by_judgement(*judged, bounds.accept_score)
        or _refused_by_work(chosen, rejected)
        or _refused_by_ids(ids_chosen, ids_rejected, bounds)
    )
    return Decision(refused, *lengths)


def _refused_by_judgement(chosen: Judgement, rejected: Judgement, accept_score: int) -> str | None:
    if not chosen.accepted(accept_score):
        return "the chosen side was not accepted"
    if rejected.score is None:
        return "the rejected side is unscored"
    if rejected.accepted(accept_score):
        return "the rejected side did not fail"
    return None


def _refused_by_work(chosen: Conversation, rejected: Conversation) -> str | None:
    if [message.tool_call for message in chosen] != [message.tool_call for message in rejected]:
        return "the tool calls differ"
    given = [[message for message in side if message.role != "assistant"] for side in (chosen, rejected)]
    return "the prompts or tool results differ" if given[0] != given[1] else None


def _refused_by_ids(chosen: Rendered, rejected: Rendered, bounds: Bounds) -> str | None:
    lengths = sum(chosen.mask), sum(rejected.mask)
    if not all(lengths):
        return "a side has no trained token"
    if chosen.ids == rejected.ids:
        return "the ids are equal"
    if _prompt_ids(chosen) != _prompt_ids(rejected):
        return "the prompt ids differ"
    if max(len(chosen.ids), len(rejected.ids)) > bounds.context_tokens:
        return "a side is longer than the context"
    if max(lengths) > bounds.max_length_ratio * min(lengths):
        return "the lengths are too far apart"
    return None


def _prompt_ids(rendered: Rendered) -> list[int]:
    return rendered.ids[: rendered.mask.index(1)]


def cohens_d(chosen: Sequence[int], rejected: Sequence[int]) -> float | None:
    """Standardised difference of mean lengths, positive when the chosen side is longer: a length bias to learn instead.

    (mean difference) / (pooled standard deviation); None with fewer than two pairs or no spread.
    """
    if min(len(chosen), len(rejected)) < 2:
        return None
    degrees = len(chosen) + len(rejected) - 2
    pooled = ((len(chosen) - 1) * variance(chosen) + (len(rejected) - 1) * variance(rejected)) / degrees
    return None if pooled == 0 else (fmean(chosen) - fmean(rejected)) / math.sqrt(pooled)
