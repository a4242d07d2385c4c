"""A CORE question as token ids: solved examples, the question, and where in the ids the scored answer begins.

The examples of a question, the texts and the choice of the scored tokens are those of nanochat (`nanochat/core_eval.py`
at 92d63d4), which holds itself to DCLM. Where nanochat stops or scores nothing (a continuation that merges with the
token before it, an option whose tokens are the beginning of another's, an answer longer than the context), the answer
here is what can still be told apart, and never empty.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from nanocode.evaluation.core.bundle import CoreTask, Item

EXAMPLE_SEPARATOR = "\n\n"
_EXAMPLES_SEED = 1234

Encode = Callable[[str], Sequence[int] | np.ndarray]


@dataclass(frozen=True)
class Prompt:
    """(T,) int32 ids of which those from `start` on are the answer; 1 <= start < T. `cut`: ids before were left out."""

    ids: np.ndarray
    start: int
    cut: bool = False


def examples_of(task: CoreTask, index: int) -> list[Item]:
    """The items that are shown, solved, before item `index`: drawn from all others, the same ones for every model."""
    drawn = random.Random(_EXAMPLES_SEED + index).sample(range(len(task.items) - 1), task.shots)
    return [task.items[other + (other >= index)] for other in drawn]


def texts_of(task: CoreTask, index: int) -> list[str]:
    """The whole text of each option of item `index`."""
    shown = "".join(
        _joined(task, *example.options[example.gold]) + EXAMPLE_SEPARATOR for example in examples_of(task, index)
    )
    return [shown + _joined(task, *option) for option in task.items[index].options]


def prompts_of(task: CoreTask, index: int, encode: Encode, bos: int, context_tokens: int) -> list[Prompt]:
    """The options of item `index`, ready to be scored by a model that sees `context_tokens` at once."""
    texts = texts_of(task, index)
    rows = [_ids(bos, encode(text)) for text in texts]
    if task.kind == "schema":
        same = max(1, common_length([row[::-1] for row in rows]))
        starts = [len(row) - same for row in rows]
    elif task.kind == "multiple_choice":
        starts = [min(common_length(rows), min(map(len, rows)) - 1)] * len(rows)
    else:
        question = texts[0].removesuffix(task.items[index].options[0][1]).rstrip()
        starts = [common_length([_ids(bos, encode(question)), rows[0]])]
    return [_fitted(row, start, context_tokens) for row, start in zip(rows, starts, strict=True)]


def common_length(rows: Sequence[np.ndarray]) -> int:
    """How many ids all rows have in common from the beginning."""
    shortest = min(len(row) for row in rows)
    differs = np.zeros(shortest, bool)
    for row in rows[1:]:
        differs |= row[:shortest] != rows[0][:shortest]
    return int(differs.argmax()) if differs.any() else shortest


def _joined(task: CoreTask, context: str, continuation: str) -> str:
    return f"{context}{task.delimiter}{continuation}"


def _ids(bos: int, text: Sequence[int] | np.ndarray) -> np.ndarray:
    return np.concatenate([np.asarray([bos]), np.asarray(text)]).astype(np.int32)


def _fitted(ids: np.ndarray, start: int, context_tokens: int) -> Prompt:
    """Cut from the left to the context; of an answer that is longer, what has a token before it is scored."""
    left_out = max(0, len(ids) - context_tokens)
    return Prompt(ids[left_out:], max(1, start - left_out), left_out > 0)
