"""Layers in a loop: the same model, a program whose size does not grow with the depth."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.depth import shape
from nanocode.model.gpt import GPT
from nanocode.model.parameters import parameters_of, with_parameters

VOCAB = 64
QUICK_TO_COMPILE = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


def config(**values: Any) -> ModelConfig:
    small = {"depth": 4, "width": 32, "heads": 2, "context_tokens": 256, "dtype": "float32", "window_pattern": "SL"}
    return ModelConfig.model_validate(small | values)


def model(**values: Any) -> GPT:
    """A model none of whose parameters is zero: a layer left out would show."""
    built = GPT(config(**values), VOCAB, nnx.Rngs(0))
    leaves, structure = jax.tree.flatten(parameters_of(built))
    keys = jax.random.split(jax.random.key(1), len(leaves))
    drawn = [jax.random.normal(key, leaf.shape) / 8 for key, leaf in zip(keys, leaves, strict=True)]
    return with_parameters(built, jax.tree.unflatten(structure, drawn))


IDS = np.random.default_rng(0).integers(0, VOCAB, (1, 150)).astype(np.int32)  # longer than the window of 128
SEGMENTS = np.sort(np.random.default_rng(1).integers(0, 3, IDS.shape), axis=1).astype(np.int32)


def loss_and_gradients(own: GPT, tokens: int) -> Any:
    def loss(parameters: Any) -> jax.Array:
        return jnp.mean(with_parameters(own, parameters)(IDS[:, :tokens], SEGMENTS[:, :tokens]) ** 2)

    return jax.jit(jax.value_and_grad(loss), compiler_options=QUICK_TO_COMPILE)(parameters_of(own))


@pytest.mark.parametrize(
    ("options", "tokens"),
    [
        pytest.param({"mask_documents": True, "kv_heads": 1, "remat": "block"}, 20, marks=pytest.mark.slow),
        pytest.param({"remat": "matmuls"}, 20, marks=pytest.mark.slow),
        ({"recipe": "nanocode", "depth": 2, "tie_embeddings": True}, 20),
        ({"depth": 4, "window_pattern": "L", "smear": False}, 20),
    ],
    ids=str,
)
def test_a_loop_over_layers_has_the_logits_and_gradients_of_the_layers_one_by_one(
    options: dict[str, Any], tokens: int
) -> None:
    plain, looped = model(**options), model(**options, scan_layers=True)
    (loss, gradients), (other_loss, other) = loss_and_gradients(plain, tokens), loss_and_gradients(looped, tokens)
    assert float(loss) == pytest.approx(float(other_loss), rel=1e-6)
    scale = max(float(jnp.max(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradients))
    jax.tree.map(lambda one, two: np.testing.assert_allclose(one, two, atol=1e-5 * scale), gradients, other)


def test_a_loop_keeps_the_windows_of_its_layers() -> None:
    plain, looped = model(recipe="nanocode"), model(recipe="nanocode", scan_layers=True)
    np.testing.assert_allclose(plain(IDS, SEGMENTS), looped(IDS, SEGMENTS), atol=1e-4)
    everywhere = model(recipe="nanocode", window_pattern="L")(IDS, SEGMENTS)
    assert float(jnp.max(jnp.abs(everywhere - plain(IDS, SEGMENTS)))) > 1e-2, "the window shows"


def test_the_program_of_a_loop_does_not_grow_with_the_depth() -> None:
    def operations(depth: int, scan_layers: bool) -> int:
        own = nnx.eval_shape(lambda: GPT(config(depth=depth, scan_layers=scan_layers), VOCAB, nnx.Rngs(0)))
        lowered = jax.jit(lambda parameters: with_parameters(own, parameters)(IDS)).lower(parameters_of(own))
        return lowered.as_text().count("dot_general")

    assert operations(8, scan_layers=True) == operations(2, scan_layers=True)
    assert operations(8, scan_layers=False) > 3 * operations(2, scan_layers=False)


@pytest.mark.parametrize(
    ("options", "period"),
    [
        ({"depth": 24, "window_pattern": "SSSL"}, 4),
        ({"depth": 24, "window_pattern": "L"}, 2),  # value embeddings in every second layer
        ({"depth": 24, "window_pattern": "L", "recipe": "nanocode"}, 1),
        ({"depth": 6, "window_pattern": "SSSL"}, 6),  # S S S L S L: nothing repeats
        ({"depth": 1}, 1),
    ],
)
def test_the_period_is_that_of_windows_and_value_embeddings(options: dict[str, Any], period: int) -> None:
    assert shape(config(**options | {"context_tokens": 1_024}), VOCAB).period == period
