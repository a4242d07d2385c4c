from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.gpt import GPT
from nanocode.model.layers import norm, rotary_tables, rotate

IDS = np.random.default_rng(0).integers(0, 300, (2, 40))
MakeModel = Callable[..., GPT]
forward = nnx.jit(lambda model, ids, segments: model(ids, segments))


def test_later_tokens_have_no_influence(tiny_model: MakeModel) -> None:
    model, changed = tiny_model(), IDS.copy()
    changed[:, 25:] = (changed[:, 25:] + 7) % 300
    before, after = (np.asarray(forward(model, ids, None)) for ids in (IDS, changed))
    np.testing.assert_array_equal(after[:, :25], before[:, :25])
    assert not np.array_equal(after[:, 25], before[:, 25])


def test_tokens_of_another_segment_have_no_influence(tiny_model: MakeModel) -> None:
    """Smear included: the first token of a segment must not take from the last of the segment before."""
    model, changed = tiny_model(), IDS.copy()
    segments = np.repeat([[0] * 13 + [1] * 27], 2, axis=0)
    changed[:, :13] = (changed[:, :13] + 7) % 300
    before, after = (np.asarray(forward(model, ids, segments)) for ids in (IDS, changed))
    np.testing.assert_array_equal(after[:, 13:], before[:, 13:])
    assert not np.array_equal(after[:, :13], before[:, :13])


def test_without_segments_they_do_have_influence(tiny_model: MakeModel) -> None:
    model, changed = tiny_model(), IDS.copy()
    changed[:, :13] = (changed[:, :13] + 7) % 300
    before, after = (np.asarray(forward(model, ids, None)) for ids in (IDS, changed))
    assert np.abs(after[:, 13:] - before[:, 13:]).max() > 0.1


def test_a_packed_document_reads_as_it_does_alone(tiny_model: MakeModel) -> None:
    """Positions count through a row, which rotary embeddings do not see."""
    model = tiny_model()
    segments = np.repeat([[0] * 13 + [1] * 27], 2, axis=0)
    packed = np.asarray(forward(model, IDS, segments))[:, 13:]
    alone = np.asarray(forward(model, IDS[:, 13:], None))
    np.testing.assert_allclose(packed, alone, atol=5e-5)


def test_right_padding_changes_nothing_before_it(tiny_model: MakeModel) -> None:
    model, padded = tiny_model(), IDS.copy()
    padded[:, 27:] = 299
    np.testing.assert_allclose(forward(model, padded, None)[:, :27], forward(model, IDS[:, :27], None), atol=2e-5)


def test_the_softcap_bounds_the_logits_and_keeps_their_order(tiny_model: MakeModel) -> None:
    hidden = jax.random.normal(jax.random.key(0), (3, 32))
    small, free = tiny_model(softcap=0.5), tiny_model(softcap=1e6)
    capped, uncapped = np.asarray(small.unembed(hidden)), np.asarray(free.unembed(hidden))
    assert np.abs(uncapped).max() > 3
    assert np.abs(capped).max() <= 0.5
    np.testing.assert_allclose(capped, 0.5 * np.tanh(uncapped / 0.5), atol=1e-6)


def test_padding_of_the_vocabulary_is_cropped(tiny_model: MakeModel) -> None:
    model = tiny_model()
    assert model.embedding.shape == (320, 32)
    assert forward(model, IDS, None).shape == (2, 40, 300)


def test_smear_mixes_in_the_predecessor_and_nothing_at_the_start(tiny_model: MakeModel) -> None:
    smear = tiny_model().smear
    x = jax.random.normal(jax.random.key(1), (1, 4, 32))
    previous = jnp.pad(x, ((0, 0), (1, 0), (0, 0)))[:, :-1]
    mixed = smear(x, previous)
    np.testing.assert_array_equal(mixed[:, 0], x[:, 0])
    added = np.asarray(mixed - x)[0, 1:]
    ratio = added / np.asarray(x)[0, :-1]
    np.testing.assert_allclose(ratio, np.repeat(ratio[:, :1], 32, axis=1), rtol=1e-3)  # one gate a token
    assert np.abs(ratio).min() > 0


def test_scores_depend_on_the_distance_of_two_positions_only() -> None:
    q, k = np.random.default_rng(0).normal(size=(2, 1, 1, 1, 16)).astype(np.float32)

    def score(query_at: int, key_at: int) -> float:
        def turned(x: np.ndarray, at: int) -> np.ndarray:
            tables = (table[at : at + 1] for table in rotary_tables(200, 16, 10_000.0))
            return np.asarray(rotate(jnp.asarray(x), *tables), np.float64)

        return float(np.sum(turned(q, query_at) * turned(k, key_at)))

    assert score(9, 2) == pytest.approx(score(107, 100), abs=1e-4)
    assert score(9, 2) != pytest.approx(score(9, 3), abs=1e-2)
    assert score(9, 2) != pytest.approx(score(2, 9), abs=1e-2)


def test_rotation_keeps_length_and_leaves_position_zero_alone() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 6, 3, 8))
    turned = rotate(x, *rotary_tables(6, 8, 100.0))
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])


def test_rotation_takes_positions_for_each_row() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 1, 3, 8))
    positions, tables = np.array([[4], [7]]), rotary_tables(8, 8, 100.0)
    together = rotate(x, *(table[positions] for table in tables))
    for row in range(2):
        alone = rotate(x[row : row + 1], *(table[positions[row]] for table in tables))
        np.testing.assert_array_equal(together[row : row + 1], alone)


def test_queries_and_keys_are_normed_after_rotation_then_scaled(tiny_model: MakeModel) -> None:
    """The root mean square of each head is qk_scale, whatever the weights are; values are left as they are."""
    model = tiny_model(qk_scale=1.5)
    x = 50 * jax.random.normal(jax.random.key(0), (1, 6, 32))
    q, k, v = model.blocks[0].project(x, *rotary_tables(6, 16, 100.0), None)
    for projected in (q, k):
        np.testing.assert_allclose(jnp.sqrt(jnp.mean(projected**2, axis=-1)), 1.5, rtol=1e-4)
    assert np.ptp(np.linalg.norm(v, axis=-1)) > 0.1


def test_the_norm_is_computed_in_float32_for_any_input_type() -> None:
    x = 300 * jax.random.normal(jax.random.key(0), (4, 64))
    np.testing.assert_allclose(jnp.mean(norm(x, 1e-6) ** 2, axis=-1), 1, rtol=1e-5)
    half = norm(x.astype(jnp.bfloat16), 1e-6)
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), norm(x, 1e-6), atol=0.02)
    assert not np.any(norm(jnp.zeros((1, 8)), 1e-6))


def test_bfloat16_activations_give_float32_logits_near_the_exact_ones(tiny_model: MakeModel) -> None:
    exact, half = (np.asarray(forward(tiny_model(dtype=dtype), IDS, None)) for dtype in ("float32", "bfloat16"))
    assert half.dtype == np.float32
    assert np.abs(half - exact).mean() < 0.1
    assert not np.array_equal(half, exact)


@pytest.mark.parametrize("tied", [False, True])
def test_a_fresh_model_is_unsure_of_every_token(tiny_config: Callable[..., ModelConfig], tied: bool) -> None:
    model = GPT(tiny_config(tie_embeddings=tied), 300, nnx.Rngs(0))
    logits = np.asarray(forward(model, IDS, None))
    scores = np.take_along_axis(logits[:, :-1], IDS[:, 1:, None], -1)[..., 0]
    nats = np.log(np.exp(logits[:, :-1]).sum(-1)) - scores
    assert nats.mean() == pytest.approx(np.log(300), abs=0.15)


def fresh(**values: Any) -> GPT:
    return GPT(ModelConfig.model_validate({"depth": 3, "width": 128, "heads": 2} | values), 300, nnx.Rngs(0))


@pytest.mark.parametrize(("recipe", "mlp", "embedding"), [("nanochat", 0.4, 0.8), ("nanocode", 1.0, 1.0)])
def test_initialisation_is_the_recipes(recipe: str, mlp: float, embedding: float) -> None:
    model = fresh(recipe=recipe)
    bound = (3 / 128) ** 0.5
    block = model.blocks[1]
    for matrix, limit in ((block.attention.query, bound), (block.attention.value, bound), (block.mlp.up, mlp * bound)):
        assert np.abs(matrix[...]).max() <= limit
        assert np.std(matrix[...]) == pytest.approx(limit / 3**0.5, rel=0.05)
        assert np.mean(matrix[...]) == pytest.approx(0, abs=limit / 20)
    assert not np.any(block.attention.output[...])
    assert not np.any(block.mlp.down[...])
    assert np.std(model.embedding[...]) == pytest.approx(embedding, rel=0.05)
    assert np.std(model.unembedding[...]) == pytest.approx(0.001, rel=0.05)


def test_the_additions_of_nanochat_start_as_it_starts_them() -> None:
    model = fresh()
    bound = (3 / 128) ** 0.5
    tables = np.asarray(model.value_embeddings[...])
    assert tables.shape == (2, 320, 128)
    assert np.std(tables) == pytest.approx(bound / 3**0.5, rel=0.05)
    assert np.abs(tables).max() <= bound
    for gate in (model.smear.gate, model.blocks[0].attention.value_gate, model.blocks[2].attention.value_gate):
        assert 0 <= np.min(gate[...]) < 0.01 < np.max(gate[...]) <= 0.02
    assert not hasattr(model.blocks[1].attention, "value_gate")
    assert float(model.smear.strength[...]) == 0
    assert float(model.backout_strength[...]) == pytest.approx(0.2)
    np.testing.assert_allclose(model.stream_scale[...], [1.15, 1.10, 1.05], rtol=1e-6)
    np.testing.assert_allclose(model.embedding_scale[...], [0.20, 0.125, 0.05], rtol=1e-6)


def test_a_tied_table_starts_small_unless_the_config_says_otherwise() -> None:
    assert np.std(fresh(tie_embeddings=True).embedding[...]) == pytest.approx(0.02, rel=0.05)
    assert np.std(fresh(tie_embeddings=True, embedding_stddev=0.5).embedding[...]) == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("remat", ["block", pytest.param("matmuls", marks=pytest.mark.slow)])
def test_rematerialisation_changes_no_gradient_and_keeps_less(tiny_model: MakeModel, remat: str) -> None:
    everything = {"value_embeddings": True, "layer_scalars": True, "backout": True, "depth": 3}

    def gradient_of(model: GPT) -> Any:
        graph, state = nnx.split(model)

        def loss(state: nnx.State) -> jax.Array:
            return jnp.mean(nnx.merge(graph, state)(IDS, None) ** 2)

        kept = jax.tree.leaves(jax.eval_shape(lambda state: jax.vjp(loss, state)[1], state))
        return jax.jit(jax.grad(loss))(state), sum(leaf.size for leaf in kept)

    plain, plain_kept = gradient_of(tiny_model(**everything))
    again, again_kept = gradient_of(tiny_model(**everything, remat=remat))
    jax.tree.map(np.testing.assert_array_equal, plain, again)
    assert again_kept < 0.7 * plain_kept


def test_the_seed_decides_the_weights(tiny_config: Callable[..., ModelConfig]) -> None:
    def leaves(seed: int) -> list[jax.Array]:
        return jax.tree.leaves(nnx.to_pure_dict(nnx.state(GPT(tiny_config(), 300, nnx.Rngs(seed)), nnx.Param)))

    assert all(np.array_equal(a, b) for a, b in zip(leaves(3), leaves(3), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(leaves(3), leaves(4), strict=True))
