"""Same weights, same logits: the model against `tests.model.reference`, an independent float64 forward pass."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.gpt import GPT
from tests.model.reference import NANOCODE, Architecture, logits

VOCAB = 150  # padded to 192
TOKENS = 140  # longer than the short window of 128, not a multiple of a block
DEPTH = 3  # SSL; value embeddings on the first and the last
SIZE = {"depth": DEPTH, "width": 64, "heads": 4, "context_tokens": 256, "dtype": "float32"}
IDS = np.random.default_rng(1).integers(0, VOCAB, (2, TOKENS))

# What a config says in our words -> what the reference calls it.
NAMES = {
    "window_pattern": "pattern",
    "value_embeddings": "value_embeddings",
    "layer_scalars": "scalars",
    "smear": "smear",
    "backout": "backout",
    "tie_embeddings": "tied",
    "rope_base": "rope_base",
    "qk_scale": "qk_scale",
    "softcap": "softcap",
}


def trained(config: ModelConfig) -> GPT:
    """A model of random weights none of whose paths is silent: as it starts, output projections and smear are zero."""
    graph, state = nnx.split(nnx.eval_shape(lambda: GPT(config, VOCAB, nnx.Rngs(0))))
    rng = np.random.default_rng(0)

    def draw(path: tuple[Any, ...], leaf: jax.ShapeDtypeStruct) -> jax.Array:
        stddev = leaf.shape[0] ** -0.5 if path[0].key == "blocks" else 0.1 if leaf.ndim > 1 else 0.3
        return jax.numpy.asarray(rng.normal(0.5 * (leaf.ndim < 2), stddev, leaf.shape), leaf.dtype)

    nnx.replace_by_pure_dict(state, jax.tree.map_with_path(draw, nnx.to_pure_dict(state)))
    return nnx.merge(graph, state)


def weights_of(model: GPT) -> dict[str, Any]:
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))


def expected_logits(model: GPT, documents: np.ndarray | None = None, **architecture: Any) -> np.ndarray:
    weights = weights_of(model)
    own = Architecture(DEPTH, 4, model.shape.kv_heads, SIZE["context_tokens"], VOCAB, **architecture)
    rows = range(len(IDS))
    return np.stack([logits(weights, own, IDS[row], None if documents is None else documents[row]) for row in rows])


def compare(architecture: dict[str, Any], documents: np.ndarray | None = None, **config: Any) -> np.ndarray:
    """Our logits against the reference's, which it returns."""
    model = trained(ModelConfig.model_validate(SIZE | config))
    expected = expected_logits(model, documents if model.config.mask_documents else None, **architecture)
    fast_compile = jax.jit(
        lambda state: nnx.merge(graph, state)(IDS, documents), compiler_options={"xla_backend_optimization_level": 0}
    )
    graph, state = nnx.split(model)
    with jax.default_matmul_precision("highest"):
        found = np.asarray(fast_compile(state))
    assert np.ptp(expected) > 3, "the comparison needs logits with a range"
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found.argmax(-1), expected.argmax(-1))
    return expected


@pytest.fixture(scope="module")
def documents() -> np.ndarray:
    return np.sort(np.random.default_rng(2).integers(0, 4, (2, TOKENS)), axis=1)


def test_the_recipe_of_nanochat_with_everything_on() -> None:
    compare({}, recipe="nanochat")


def test_the_recipe_of_nanochat_with_shared_key_heads_and_masked_documents(documents: np.ndarray) -> None:
    compare({}, documents, recipe="nanochat", kv_heads=2, mask_documents=True)


def test_the_recipe_of_nanocode() -> None:
    compare(NANOCODE, recipe="nanocode")


@pytest.mark.parametrize(
    "changes",
    [
        {"window_pattern": "L", "backout": False},
        {"window_pattern": "SL", "value_embeddings": False},
        {"layer_scalars": False, "smear": False},
        {"tie_embeddings": True, "rope_base": 10_000.0, "qk_scale": 1.0, "softcap": 5.0},
    ],
    ids="-".join,
)
def test_each_switch_does_what_the_reference_does(changes: dict[str, Any]) -> None:
    compare({NAMES[name]: value for name, value in changes.items()}, kv_heads=1, **changes)


def test_every_part_of_the_recipe_shows_in_the_logits() -> None:
    """Else a part that both sides leave out would pass."""
    model = trained(ModelConfig.model_validate(SIZE))
    everything = expected_logits(model)
    for part in ("value_embeddings", "scalars", "smear", "backout"):
        without = expected_logits(model, **{part: False})
        assert np.abs(without - everything).max() > 0.1, part
    windowless = expected_logits(model, pattern="L")
    np.testing.assert_array_equal(windowless[:, :129], everything[:, :129])
    assert np.abs(windowless[:, 129:] - everything[:, 129:]).max() > 1e-3


def test_without_the_mask_packed_documents_see_each_other_as_in_nanochat(documents: np.ndarray) -> None:
    together = compare({}, documents, mask_documents=False)
    apart = expected_logits(trained(ModelConfig.model_validate(SIZE)), documents)
    assert np.abs(apart - together).max() > 0.1
