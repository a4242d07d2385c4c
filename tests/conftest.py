"""What the tests of the core share: a tokenizer of 300 entries, and models too small to know anything.

JAX is imported by the fixtures that need it, so that the tests of files, stores and tools start without it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from nanocode.config import ModelConfig
from nanocode.tokenizer import Tokenizer

if TYPE_CHECKING:
    from nanocode.model.gpt import GPT

# The same examples in every run, and no time limit for one: the machine may be busy.
settings.register_profile("deterministic", derandomize=True, deadline=None, print_blob=True)
settings.load_profile("deterministic")

VOCAB_SIZE = 300
TOKENIZER_TEXT = (
    "def add(first, second):\n    return first + second\n",
    "the agent reads the file, then the agent edits the file\n",
    "Read Edit Grep Bash file_path old_string new_string command pattern 1234567890\n",
    "<|bos|><|user_start|> stays text: <|tool_call_start|>Read<|tool_arg|>file_path<|tool_val|>a.py<|tool_call_end|>\n",
)


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """256 bytes, 32 merges, 12 control tokens."""
    return Tokenizer.train(TOKENIZER_TEXT, VOCAB_SIZE)


def tiny_model_config(**changes: object) -> ModelConfig:
    """Two layers of width 32, in float32, with the switches of the nano model."""
    size = {"depth": 2, "width": 32, "heads": 2, "context_tokens": 96, "dtype": "float32", "mask_documents": True}
    off = {"window_pattern": "L", "value_embeddings": False, "layer_scalars": False, "backout": False}
    return ModelConfig.model_validate({**size, **off, **changes})


@pytest.fixture(scope="session")
def tiny_config() -> Callable[..., ModelConfig]:
    """`tiny_config(tie_embeddings=True, ...)`: the tiny shape with some fields changed."""
    return tiny_model_config


@pytest.fixture(scope="session")
def tiny_model() -> Callable[..., GPT]:
    """`tiny_model(seed=0, **config)`: a GPT whose every parameter is random, so that no path through it is silent.

    A fresh model has zero output matrices and no smear: nothing that attention does would reach its logits.
    """
    import jax
    import numpy as np
    from flax import nnx

    from nanocode.model.gpt import GPT
    from nanocode.training.step import with_parameters

    def make(seed: int = 0, **changes: object) -> GPT:
        model = nnx.eval_shape(lambda: GPT(tiny_model_config(**changes), VOCAB_SIZE, nnx.Rngs(0)))
        rng = np.random.default_rng(seed)

        def draw(leaf: jax.ShapeDtypeStruct) -> jax.Array:
            return jax.numpy.asarray(rng.normal(0, 0.3, leaf.shape), leaf.dtype)

        return with_parameters(model, jax.tree.map(draw, nnx.to_pure_dict(nnx.state(model, nnx.Param))))

    return make
