"""Bits per byte: the published vector, a model that knows nothing, and no dependence on how documents are windowed."""

from __future__ import annotations

import math

import jax.numpy as jnp
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.evaluation.bits_per_byte import bits_per_byte, summary
from nanocode.model.gpt import GPT
from nanocode.tokenizer import Tokenizer

TEXTS = ["def f(x):\n    return x + 1\n", "naïve café 数字 12345", "a" * 200]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["def f(x): return x + 1 and more of the same text for merges"] * 3, 280)


def uniform_model(tokenizer: Tokenizer) -> GPT:
    config = ModelConfig(depth=1, width=32, heads=2, context_tokens=32, tie_embeddings=True, dtype="float32")
    model = GPT(config, tokenizer.vocab_size, nnx.Rngs(0))
    model.embedding[...] = jnp.zeros_like(model.embedding[...])
    return model


def test_the_published_vector() -> None:
    assert summary(100 * 2.0, 350) == pytest.approx(0.824397, abs=1e-6)


def test_a_uniform_model_needs_log2_v_bits_a_token(tokenizer: Tokenizer) -> None:
    tokens = sum(len(tokenizer.encode(text)) for text in TEXTS)
    size = sum(len(text.encode()) for text in TEXTS)
    measured = bits_per_byte(uniform_model(tokenizer), tokenizer, TEXTS, max_bytes=10_000)
    assert measured == pytest.approx(math.log2(tokenizer.vocab_size) * tokens / size, rel=1e-5)


def test_only_the_first_bytes_count(tokenizer: Tokenizer) -> None:
    model = uniform_model(tokenizer)
    whole = bits_per_byte(model, tokenizer, TEXTS[:1], max_bytes=10_000)
    assert bits_per_byte(model, tokenizer, TEXTS, max_bytes=len(TEXTS[0].encode())) == pytest.approx(whole)


def test_nothing_held_out_is_an_error(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match="at least one byte"):
        bits_per_byte(uniform_model(tokenizer), tokenizer, [], max_bytes=10)
