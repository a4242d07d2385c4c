from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanocode.model.attention import blockwise_attention, causal_attention, choose_backend
from nanocode.model.cudnn import xla_attention
from nanocode.model.splash import splash_attention

Attention = Callable[..., jax.Array]
PATHS: dict[str, Attention] = {
    "blockwise": blockwise_attention,
    "xla": xla_attention,
    "splash": partial(splash_attention, interpret=True),
}


def visible(tokens: int, segments: np.ndarray | None, window: int | None) -> np.ndarray:
    """(B or 1, T, T): which key, last, a query may see."""
    back = np.arange(tokens)[:, None] - np.arange(tokens)[None, :]
    seen = (back >= 0) & (back <= (tokens if window is None else window))
    return seen[None] if segments is None else seen & (segments[:, :, None] == segments[:, None, :])


def reference(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, segments: np.ndarray | None, window: int | None, upstream: np.ndarray
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Softmax attention and its gradients to q, k and v for `upstream` (B, T, H, D), in float64, head by head."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    out, gradients = np.zeros_like(q), [np.zeros_like(x) for x in (q, k, v)]
    mask, scale = visible(q.shape[1], segments, window), q.shape[-1] ** -0.5
    for row, head in np.ndindex(q.shape[0], q.shape[2]):
        shared = head * k.shape[2] // q.shape[2]
        one_q, one_k, one_v = q[row, :, head], k[row, :, shared], v[row, :, shared]
        weights = np.exp(one_q @ one_k.T * scale) * mask[row % len(mask)]
        weights /= weights.sum(-1, keepdims=True)
        out[row, :, head] = weights @ one_v
        above = upstream[row, :, head].astype(np.float64)
        to_weights = above @ one_v.T
        to_scores = weights * (to_weights - (to_weights * weights).sum(-1, keepdims=True)) * scale
        gradients[0][row, :, head] = to_scores @ one_k
        gradients[1][row, :, shared] += to_scores.T @ one_q
        gradients[2][row, :, shared] += weights.T @ above
    return out, gradients


def random_qkv(tokens: int, heads: int = 2, kv_heads: int = 2, width: int = 4, rows: int = 2) -> list[np.ndarray]:
    rng = np.random.default_rng(tokens)
    return [rng.normal(size=(rows, tokens, count, width)).astype(np.float32) for count in (heads, kv_heads, kv_heads)]


def check(path: Attention, qkv: list[np.ndarray], segments: np.ndarray | None, window: int | None) -> None:
    upstream = np.random.default_rng(5).normal(size=qkv[0].shape).astype(np.float32)

    def run(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        out, pull = jax.vjp(lambda q, k, v: path(q, k, v, segments, window), q, k, v)
        return out, pull(jnp.asarray(upstream))

    with jax.default_matmul_precision("highest"):
        # Without LLVM's passes: compiling is nearly all of the time that these tests take.
        out, gradients = jax.jit(run, compiler_options={"xla_backend_optimization_level": 0})(*qkv)
    expected, expected_gradients = reference(*qkv, segments, window, upstream)
    np.testing.assert_allclose(out, expected, atol=5e-6)
    for found, wanted in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(found, wanted, atol=2e-5)


def documents(tokens: int, rows: int = 2) -> np.ndarray:
    return np.sort(np.random.default_rng(1).integers(0, 4, (rows, tokens)), axis=1)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
@pytest.mark.parametrize(("packed", "window"), [(False, None), (True, None), (True, 70)])
def test_every_path_is_a_causal_softmax_within_window_and_segments(
    path: Attention, packed: bool, window: int | None
) -> None:
    """130 tokens: two whole blocks of queries and some; four heads that share two key heads."""
    qkv = random_qkv(130, heads=4, kv_heads=2)
    check(path, qkv, documents(130) if packed else None, window)


@settings(max_examples=5)
@given(
    tokens=st.integers(1, 100),
    kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    window=st.none() | st.integers(0, 110),
    packed=st.booleans(),
)
def test_the_blockwise_path_takes_any_shape(
    tokens: int, kv_heads: int, group: int, window: int | None, packed: bool
) -> None:
    qkv = random_qkv(tokens, heads=kv_heads * group, kv_heads=kv_heads, rows=1)
    check(blockwise_attention, qkv, documents(tokens, rows=1) if packed else None, window)


@pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)
def test_the_window_shows_so_many_keys_and_the_token_itself(path: Attention) -> None:
    q, k, v = random_qkv(20)
    q, v = np.zeros_like(q), np.broadcast_to(np.arange(20.0, dtype=np.float32)[None, :, None, None], v.shape)
    mean_position = np.asarray(path(q, k, v, None, 4))[0, :, 0, 0]  # equal scores: the mean of what is seen
    np.testing.assert_allclose(mean_position, [np.mean(range(max(0, t - 4), t + 1)) for t in range(20)], rtol=1e-6)


def test_padding_with_a_segment_of_its_own_gives_no_nan() -> None:
    q, k, v = random_qkv(6)
    segments = np.array([[-1] * 6, [0, 0, 1, -1, -1, -1]])
    for path in PATHS.values():
        assert np.isfinite(jax.jit(path)(q, k, v, segments)).all()


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


def test_the_gradient_to_a_key_that_is_not_seen_is_exactly_zero() -> None:
    """Later, foreign, or left of the window of 1."""
    q, k, v = random_qkv(10)
    segments = np.repeat([[0] * 4 + [1] * 6], 2, axis=0)
    for window, seen in ((None, [4, 5, 6]), (1, [5, 6])):
        gradient = jax.jit(jax.grad(lambda v, window=window: causal_attention(q, k, v, segments, window)[:, 6].sum()))
        assert np.flatnonzero(np.abs(gradient(v)).sum((0, 2, 3))).tolist() == seen


def test_blocks_left_of_the_window_are_not_computed() -> None:
    shapes = [jax.ShapeDtypeStruct((1, 1_024, 2, 16), jnp.float32)] * 3

    def flops(window: int | None) -> float:
        return jax.jit(partial(blockwise_attention, window=window)).lower(*shapes).cost_analysis()["flops"]

    assert flops(128) < 0.4 * flops(None)


@pytest.mark.parametrize(
    ("platform", "dtype", "width", "tokens", "expected"),
    [
        ("tpu", "float32", 64, 64, "splash"),
        ("tpu", "bfloat16", 256, 4_096, "splash"),
        ("gpu", "bfloat16", 128, 2_048, "cudnn"),
        ("gpu", "float32", 128, 2_048, "xla"),
        ("gpu", "bfloat16", 256, 4_096, "xla"),
        ("gpu", "bfloat16", 128, 33, "xla"),
        ("cpu", "bfloat16", 128, 2_048, "blockwise"),
    ],
)
def test_the_path_is_chosen_by_platform_type_and_shape(
    platform: str, dtype: str, width: int, tokens: int, expected: str
) -> None:
    assert choose_backend(platform, jax.ShapeDtypeStruct((8, tokens, 6, width), dtype)) == expected


def test_the_path_that_is_asked_for_is_taken() -> None:
    """130 tokens are three blocks of queries with two products each; XLA's path has two products in all."""
    qkv = random_qkv(130)
    products = {
        backend: str(jax.make_jaxpr(partial(causal_attention, backend=backend))(*qkv)).count("dot_general")
        for backend in ("auto", "blockwise", "xla")
    }
    assert products == {"auto": 6, "blockwise": 6, "xla": 2}
