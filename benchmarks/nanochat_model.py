"""The model of karpathy/nanochat in a given shape, on the CPU; runs in an interpreter with torch and its checkout."""

from __future__ import annotations

from typing import Any

import torch
from nanochat.gpt import GPT, GPTConfig


def build(settings: dict[str, Any], seed: int = 0) -> GPT:
    """Its own initialisation, `settings["threads"]` threads."""
    torch.set_num_threads(settings["threads"])
    torch.manual_seed(seed)
    config = GPTConfig(
        sequence_len=settings["context"],
        vocab_size=settings["vocab"],
        n_layer=settings["depth"],
        n_head=settings["heads"],
        n_kv_head=settings["heads"],
        n_embd=settings["width"],
        window_pattern="L",
    )
    with torch.device("meta"):
        model = GPT(config)
    model.to_empty(device="cpu")
    model.init_weights()
    return model
