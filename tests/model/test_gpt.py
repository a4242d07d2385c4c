from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.model.gpt import GPT, norm, rotary_tables, rotate

IDS = np.random.default_rng(0).integers(0, 300, (2, 40))
MakeModel = Callable[..., GPT]
forward = nnx.jit(lambda model, ids, segments: model(ids, segments))


def numpy_norm(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + np.finfo(np.float32).eps)


def numpy_rotate(x: np.ndarray, base: float) -> np.ndarray:
    """Pairs (i, i + D/2) as complex numbers, turned by minus position times frequency; x (T, H, D)."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(-1j * angles)[:, None, :]
    return np.concatenate([turned.real, turned.imag], axis=-1)


def numpy_gpt(model: GPT, ids: np.ndarray, segments: np.ndarray | None = None) -> np.ndarray:
    """Logits (T, V) of one row, written from the description of the architecture, in float64."""
    parameters = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), nnx.to_pure_dict(nnx.state(model, nnx.Param)))
    config, tokens = model.config, len(ids)
    segments = np.zeros(tokens, int) if segments is None else segments
    visible = np.tri(tokens, dtype=bool) & (segments[:, None] == segments[None, :])
    x = numpy_norm(parameters["embedding"][ids])
    if config.smear:
        plain = x.copy()
        for t in range(1, tokens):
            if segments[t] == segments[t - 1]:
                gate = 1 / (1 + np.exp(-plain[t, :24] @ parameters["smear"]["gate"]))
                x[t] = plain[t] + parameters["smear"]["strength"] * gate * plain[t - 1]
    embedded = x
    for layer in range(config.depth):
        if config.layer_scalars:
            x = parameters["stream_scale"][layer] * x + parameters["embedding_scale"][layer] * embedded
        attention, mlp = parameters["blocks"][layer]["attention"], parameters["blocks"][layer]["mlp"]
        h = numpy_norm(x)
        q, k, v = ((h @ attention[name]).reshape(tokens, config.heads, -1) for name in ("query", "key", "value"))
        if config.value_embeddings and (config.depth - 1 - layer) % 2 == 0:
            gate = 3 / (1 + np.exp(-h[:, :12] @ attention["value_gate"]))
            v = v + gate[..., None] * parameters["value_embeddings"][layer // 2][ids].reshape(v.shape)
        q, k = (config.qk_scale * numpy_norm(numpy_rotate(y, config.rope_base)) for y in (q, k))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(q.shape[-1])
        weights = np.exp(scores) * visible
        weights /= weights.sum(-1, keepdims=True)
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(tokens, -1) @ attention["output"]
        x = x + np.maximum(numpy_norm(x) @ mlp["up"], 0) ** 2 @ mlp["down"]
    table = parameters["embedding"] if config.tie_embeddings else parameters["unembedding"]
    logits = numpy_norm(x) @ table[: model.vocab_size].T
    return config.softcap * np.tanh(logits / config.softcap)


NANOCHAT = {"value_embeddings": True, "layer_scalars": True, "depth": 3}


@pytest.mark.parametrize(
    "changes", [{}, NANOCHAT, {"tie_embeddings": True, "smear": False, "qk_scale": 1.0, "rope_base": 1e4}]
)
@pytest.mark.parametrize("packed", [False, True])
def test_logits_equal_an_independent_numpy_model(tiny_model: MakeModel, changes: dict, packed: bool) -> None:
    model = tiny_model(**changes)
    segments = np.sort(np.random.default_rng(1).integers(0, 3, IDS.shape), axis=1) if packed else None
    logits = np.asarray(forward(model, IDS, segments))
    expected = [numpy_gpt(model, row, None if segments is None else segments[i]) for i, row in enumerate(IDS)]
    assert np.ptp(expected) > 5, "the comparison needs logits with a range"
    np.testing.assert_allclose(logits, expected, atol=1e-4)
    np.testing.assert_array_equal(logits.argmax(-1), np.argmax(expected, -1))


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
            return np.asarray(rotate(jnp.asarray(x), *rotary_tables(jnp.array([at]), 16, 10_000.0)), np.float64)

        return float(np.sum(turned(q, query_at) * turned(k, key_at)))

    assert score(9, 2) == pytest.approx(score(107, 100), abs=1e-4)
    assert score(9, 2) != pytest.approx(score(9, 3), abs=1e-2)
    assert score(9, 2) != pytest.approx(score(2, 9), abs=1e-2)


def test_rotation_keeps_length_and_leaves_position_zero_alone() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 6, 3, 8))
    turned = rotate(x, *rotary_tables(jnp.arange(6), 8, 100.0))
    np.testing.assert_allclose(jnp.linalg.norm(turned, axis=-1), jnp.linalg.norm(x, axis=-1), rtol=1e-5)
    np.testing.assert_array_equal(turned[:, 0], x[:, 0])


def test_rotation_takes_positions_for_each_row() -> None:
    x = jax.random.normal(jax.random.key(0), (2, 1, 3, 8))
    positions = jnp.array([[4], [7]])
    together = rotate(x, *rotary_tables(positions, 8, 100.0))
    for row in range(2):
        alone = rotate(x[row : row + 1], *rotary_tables(positions[row], 8, 100.0))
        np.testing.assert_array_equal(together[row : row + 1], alone)


def test_queries_and_keys_are_normed_after_rotation_then_scaled(tiny_model: MakeModel) -> None:
    """The root mean square of each head is qk_scale, whatever the weights are; values are left as they are."""
    model = tiny_model(qk_scale=1.5)
    x = 50 * jax.random.normal(jax.random.key(0), (1, 6, 32))
    q, k, v = model.blocks[0].project(x, *rotary_tables(jnp.arange(6), 16, 100.0), None)
    for projected in (q, k):
        np.testing.assert_allclose(jnp.sqrt(jnp.mean(projected**2, axis=-1)), 1.5, rtol=1e-4)
    assert np.ptp(np.linalg.norm(v, axis=-1)) > 0.1


def test_the_norm_is_computed_in_float32_for_any_input_type() -> None:
    x = 300 * jax.random.normal(jax.random.key(0), (4, 64))
    np.testing.assert_allclose(jnp.mean(norm(x) ** 2, axis=-1), 1, rtol=1e-5)
    half = norm(x.astype(jnp.bfloat16))
    assert half.dtype == jnp.bfloat16
    np.testing.assert_allclose(half.astype(jnp.float32), norm(x), atol=0.02)
    assert not np.any(norm(jnp.zeros((1, 8))))


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


def test_initialisation_has_the_documented_bounds(tiny_config: Callable[..., ModelConfig]) -> None:
    model = GPT(tiny_config(width=128), 300, nnx.Rngs(0))
    bound = (3 / 128) ** 0.5
    block = model.blocks[1]
    for matrix, limit in ((block.attention.query, bound), (block.attention.value, bound), (block.mlp.up, 0.4 * bound)):
        assert np.abs(matrix[...]).max() <= limit
        assert np.std(matrix[...]) == pytest.approx(limit / 3**0.5, rel=0.05)
        assert np.mean(matrix[...]) == pytest.approx(0, abs=limit / 20)
    assert not np.any(block.attention.output[...])
    assert not np.any(block.mlp.down[...])
    assert np.std(model.embedding[...]) == pytest.approx(0.8, rel=0.05)
    assert np.std(model.unembedding[...]) == pytest.approx(0.001, rel=0.05)
    assert float(model.smear.strength[...]) == 0


def test_the_seed_decides_the_weights(tiny_config: Callable[..., ModelConfig]) -> None:
    def leaves(seed: int) -> list[jax.Array]:
        return jax.tree.leaves(nnx.to_pure_dict(nnx.state(GPT(tiny_config(), 300, nnx.Rngs(seed)), nnx.Param)))

    assert all(np.array_equal(a, b) for a, b in zip(leaves(3), leaves(3), strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(leaves(3), leaves(4), strict=True))
