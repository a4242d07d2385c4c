"""Each part of Muon by what it promises; `test_optimizer_parity` has them together."""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from muon_reference import numpy_polar_express

from nanocode.training.muon import (
    NEWTON_SCHULZ,
    decay_weights,
    equalise_rows,
    nesterov,
    normuon,
    orthogonalise,
    rescale,
    scale_by_shape,
)
from nanocode.training.schedule import constant

SIZES = pytest.mark.parametrize("size", [(16, 16), (16, 24), (24, 16)])
"""(in, out): square, more rows than columns, fewer."""


def draw(*size: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=size).astype(np.float32)


def apply(transformation: Any, stack: np.ndarray, state: Any = None) -> tuple[np.ndarray, Any]:
    """One update of a list of one stack; compiled whole, which takes less than compiling its operations one by one."""
    update = jax.jit(transformation.update, compiler_options={"xla_backend_optimization_level": 0})
    result, state = update([stack], transformation.init([stack]) if state is None else state)
    return np.asarray(result[0]), state


@pytest.mark.parametrize("size", [(32, 32), (32, 128), (128, 32), (16, 17)])
def test_polar_express_is_its_polynomial_on_the_singular_values(size: tuple[int, int]) -> None:
    stack = draw(3, *size)
    np.testing.assert_allclose(
        jax.jit(orthogonalise)(stack), [numpy_polar_express(matrix) for matrix in stack], atol=2e-4
    )


@pytest.mark.parametrize("size", [(32, 128), (128, 32)])
def test_polar_express_brings_singular_values_near_one(size: tuple[int, int]) -> None:
    """Five steps reach 0.86 .. 1.14 here; of the nearest semi-orthogonal matrix all are 1."""
    values = np.linalg.svd(jax.jit(orthogonalise)(draw(5, *size)), compute_uv=False)
    assert np.all((values > 0.8) & (values < 1.2))
    assert np.abs(values - 1).mean() < 0.1


def test_the_first_muon_s_quintic_brings_them_less_near() -> None:
    """Jordan et al. give about 0.7 .. 1.2 for what five of their steps make of singular values that are not tiny."""
    values = np.linalg.svd(jax.jit(partial(orthogonalise, iteration=NEWTON_SCHULZ))(draw(5, 32, 128)), compute_uv=False)
    assert np.all((values > 0.6) & (values < 1.25))


def test_bfloat16_changes_digits_not_the_type() -> None:
    wide, narrow = (jax.jit(partial(orthogonalise, in_bfloat16=narrow))(draw(2, 16, 24)) for narrow in (False, True))
    assert narrow.dtype == wide.dtype == jnp.float32
    assert 1e-4 < np.linalg.norm(wide - narrow) / np.linalg.norm(wide) < 0.2


def test_polar_express_ignores_the_scale_of_the_gradient() -> None:
    small, large = (np.asarray(jax.jit(orthogonalise)(scale * draw(1, 16, 24))) for scale in (1e-2, 1e4))
    np.testing.assert_allclose(small, large, atol=1e-4)


@pytest.mark.parametrize("part", [equalise_rows(), rescale(), normuon(0.9), scale_by_shape()])
def test_a_gradient_of_zero_moves_a_matrix_nowhere(part: Any) -> None:
    """So that padding a stack with zeros is harmless."""
    assert not np.any(jax.jit(orthogonalise)(np.zeros((2, 8, 4), np.float32)))
    assert not np.any(apply(part, np.zeros((2, 8, 4), np.float32))[0])


@SIZES
def test_rows_are_the_output_axis_and_come_to_one_norm(size: tuple[int, int]) -> None:
    stack = draw(2, *size)
    result, _ = apply(equalise_rows(), stack)
    norms = np.linalg.norm(result, axis=1)  # over the inputs: one for each output
    np.testing.assert_allclose(norms, np.broadcast_to(norms[:, :1], (2, size[1])), rtol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(result, axis=(1, 2)), np.linalg.norm(stack, axis=(1, 2)), rtol=1e-5)


@SIZES
def test_rescaling_gives_the_norm_of_a_semi_orthogonal_matrix(size: tuple[int, int]) -> None:
    exact = np.linalg.svd(draw(2, *size), full_matrices=False)
    semi_orthogonal = exact[0] @ exact[2]
    np.testing.assert_allclose(apply(rescale(), 3.0 * semi_orthogonal)[0], semi_orthogonal, atol=1e-5)


@SIZES
def test_normuon_keeps_the_norm_and_evens_the_lines_of_the_longer_side(size: tuple[int, int]) -> None:
    stack = draw(2, *size) * np.linspace(0.1, 3, size[1], dtype=np.float32)
    result, state = apply(normuon(0.9), stack)
    np.testing.assert_allclose(np.linalg.norm(result, axis=(1, 2)), np.linalg.norm(stack, axis=(1, 2)), rtol=1e-5)
    over = 1 if size[1] >= size[0] else 2
    squares = np.square(result).mean(over)
    np.testing.assert_allclose(squares, np.broadcast_to(squares[:, :1], squares.shape), rtol=1e-4)
    assert state.second[0].shape == ((2, 1, size[1]) if size[1] >= size[0] else (2, size[0], 1))


def test_normuon_remembers_without_bias_correction() -> None:
    stack = draw(1, 4, 6)
    transformation = normuon(0.9)
    _, state = apply(transformation, stack)
    np.testing.assert_allclose(state.second[0], 0.1 * np.square(stack).mean(1, keepdims=True), rtol=1e-5)
    _, state = apply(transformation, 2 * stack, state)
    np.testing.assert_allclose(state.second[0], (0.09 + 0.4) * np.square(stack).mean(1, keepdims=True), rtol=1e-5)


def test_momentum_follows_its_schedule_and_the_gradient_counts_twice() -> None:
    transformation = nesterov(lambda step: jnp.where(step == 0, 0.5, 0.8))
    state = transformation.init({"a": np.zeros(1, np.float32)})
    first, state = transformation.update({"a": np.ones(1, np.float32)}, state)
    second, state = transformation.update({"a": np.zeros(1, np.float32)}, state)
    assert float(first["a"][0]) == pytest.approx(0.5 * 0.5 + 0.5)
    assert float(second["a"][0]) == pytest.approx(0.8 * (0.8 * 0.5))
    assert int(state.step) == 2


def test_cautious_decay_pulls_only_what_the_step_shrinks_anyway() -> None:
    """A positive direction lowers the parameter: it shrinks one above zero."""
    parameters = np.array([2.0, -2.0, 2.0, -2.0], np.float32)
    directions = np.array([1.0, 1.0, -1.0, -1.0], np.float32)
    results = {}
    for cautious in (False, True):
        transformation = decay_weights(constant(0.1), cautious)
        results[cautious], _ = transformation.update(directions, transformation.init(parameters), parameters)
    np.testing.assert_allclose(results[False], directions + 0.1 * parameters)
    np.testing.assert_allclose(results[True], directions + 0.1 * np.array([2, 0, 0, -2]))


def test_decay_needs_the_parameters() -> None:
    transformation = decay_weights(constant(0.1), cautious=True)
    with pytest.raises(ValueError, match=r"decay_weights needs the parameters"):
        transformation.update(np.ones(1), transformation.init(np.ones(1)))


def test_only_a_matrix_with_more_outputs_than_inputs_moves_further() -> None:
    factors = {size: apply(scale_by_shape(), np.ones((1, *size)))[0].max() for size in [(4, 16), (16, 4), (4, 4)]}
    assert factors == {(4, 16): 2.0, (16, 4): 1.0, (4, 4): 1.0}
