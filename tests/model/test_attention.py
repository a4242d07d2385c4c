from __future__ import annotations

import jax
import numpy as np
import pytest

from nanocode.model.attention import causal_attention


def reference(q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray | None) -> np.ndarray:
    """Softmax attention query by query in float64; q, k, v (B, T, H, D)."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out = np.zeros_like(q)
    for row, query, head in np.ndindex(q.shape[:3]):
        seen = [key for key in range(query + 1) if segments is None or segments[row, key] == segments[row, query]]
        scores = np.array([q[row, query, head] @ k[row, key, head] for key in seen]) / np.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max())
        out[row, query, head] = (weights / weights.sum()) @ v[row, seen, head]
    return out


def random_qkv(tokens: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(2, tokens, 2, 4)).astype(np.float32) for _ in range(3)]


@pytest.mark.parametrize("tokens", [1, 5, 64, 65, 130])
@pytest.mark.parametrize("packed", [False, True])
def test_attention_is_a_causal_softmax_within_segments(tokens: int, packed: bool) -> None:
    q, k, v = random_qkv(tokens)
    segments = np.sort(np.random.default_rng(1).integers(0, 4, (2, tokens)), axis=1) if packed else None
    result = jax.jit(causal_attention)(q, k, v, segments)
    np.testing.assert_allclose(result, reference(q, k, v, segments), atol=2e-6)


def test_padding_with_a_segment_of_its_own_gives_no_nan() -> None:
    q, k, v = random_qkv(6)
    segments = np.array([[-1] * 6, [0, 0, 1, -1, -1, -1]])
    assert np.isfinite(jax.jit(causal_attention)(q, k, v, segments)).all()


def test_a_later_or_foreign_key_has_no_influence_at_all() -> None:
    q, k, v = random_qkv(130)
    segments = np.repeat([[0] * 40 + [1] * 90], 2, axis=0)
    attend = jax.jit(causal_attention)
    before = np.asarray(attend(q, k, v, segments))
    changed_k, changed_v = k.copy(), v.copy()
    changed_k[:, 100:] = changed_v[:, 100:] = 1e6  # the future of tokens below 100
    changed_k[:, :40] = changed_v[:, :40] = -1e6  # another document to those from 40 on
    after = np.asarray(attend(q, changed_k, changed_v, segments))
    np.testing.assert_array_equal(after[:, 40:100], before[:, 40:100])
    assert not np.array_equal(after[:, 100:], before[:, 100:])


def test_the_gradient_to_a_later_or_foreign_value_is_exactly_zero() -> None:
    q, k, v = random_qkv(10)
    segments = np.repeat([[0] * 4 + [1] * 6], 2, axis=0)
    gradient = jax.jit(jax.grad(lambda v: causal_attention(q, k, v, segments)[:, 6].sum()))(v)
    touched = np.abs(gradient).sum((0, 2, 3)) > 0
    assert touched.tolist() == [False] * 4 + [True] * 3 + [False] * 3
