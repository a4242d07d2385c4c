"""nanochat's CORE, row by row, for `benchmarks/core_parity.py`: runs in its environment, on its own code.

    <python with torch> benchmarks/nanochat_core.py '<settings as JSON>'      # PYTHONPATH is nanochat's checkout

The bundle's tasks come with the settings, since nanochat reads them with a library that is not everywhere; rows,
examples, prompts, tokens and verdicts are made by `nanochat.core_eval`. Prints one JSON line.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from typing import Any

import torch
from core_made_up import BOS, CONTEXT_TOKENS, encode, logits
from nanochat import core_eval


class MadeUpTokenizer:
    """The benchmark's tokenizer, as nanochat calls one."""

    def get_bos_token_id(self) -> int:
        return BOS

    def __call__(self, texts: list[str], prepend: int) -> list[list[int]]:
        return [[prepend, *encode(text)] for text in texts]


class MadeUpModel:
    """The benchmark's function to logits, as nanochat calls a model."""

    max_seq_len = CONTEXT_TOKENS

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([torch.from_numpy(logits(row.numpy())) for row in ids])


def main() -> None:
    settings = json.loads(sys.argv[1])
    print(json.dumps({task["label"]: answers(task, settings["examples"]) for task in settings["tasks"]}))  # noqa: T201


def answers(task: dict[str, Any], examples: int | None) -> list[dict[str, Any]]:
    """For each row: the examples shown (their places in the shuffled rows), a digest of all tokens, the verdict."""
    with open(task["file"], encoding="utf-8") as file:  # noqa: PTH123 - as nanochat reads it
        data = [json.loads(line.strip()) for line in file]
    random.Random(1337).shuffle(data)
    data = data[:examples]
    places = {id(row): place for place, row in enumerate(data)}
    shown: list[list[int]] = []
    rendering = {"multiple_choice": "mc", "schema": "schema", "language_modeling": "lm"}[task["kind"]]
    name = f"render_prompts_{rendering}"
    original = getattr(core_eval, name)

    def noted(item: Any, delimiter: str, few: list[Any]) -> Any:
        shown.append([places[id(example)] for example in few])
        return original(item, delimiter, few)

    tokens: list[str] = []
    forward = core_eval.forward_model

    def seen(model: Any, ids: torch.Tensor) -> Any:
        tokens.append(hashlib.sha256(ids.numpy().astype("<i4").tobytes()).hexdigest())
        return forward(model, ids)

    setattr(core_eval, name, noted)
    core_eval.forward_model = seen
    meta = {"task_type": task["kind"], "num_fewshot": task["shots"], "continuation_delimiter": task["delimiter"]}
    model, tokenizer = MadeUpModel(), MadeUpTokenizer()
    try:
        right = [core_eval.evaluate_example(index, model, tokenizer, data, "cpu", meta) for index in range(len(data))]
    finally:
        setattr(core_eval, name, original)
        core_eval.forward_model = forward
    return [
        {"shown": few, "tokens": digest, "right": bool(verdict)}
        for few, digest, verdict in zip(shown, tokens, right, strict=True)
    ]


if __name__ == "__main__":
    main()
