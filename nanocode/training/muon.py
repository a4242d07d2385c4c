"""Muon, in parts that chain: each an Optax transformation of block matrices.

Muon (Jordan et al., 2024) replaces the momentum of a matrix by the nearest semi-orthogonal matrix. What nanochat
(karpathy/nanochat at 92d63d4) adds to it stands here beside it, one transformation each, in the order of its chain:

    nesterov -> over_stacks(equalise_rows -> orthogonal -> rescale -> normuon) -> decay_weights -> scale_by_shape

Kernels here are (in, out); the papers' and torch's matrices are (out, in), so that their *rows* are our last axis and
their *columns* our last but one. "Stack" means matrices of one shape as one (N, in, out) array.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from nanocode.training.schedule import Schedule

_NORM_FLOOR = 1e-6
_VARIANCE_FLOOR = 1e-10
_ROW, _COLUMN = -1, -2  # the axes that count a matrix's rows and columns, in the papers' terms


@dataclass(frozen=True)
class Iteration:
    """Steps X <- a X + (b A + c A^2) X with A = X X^T, from X / (`headroom` x Frobenius norm + `epsilon`)."""

    coefficients: tuple[tuple[float, float, float], ...]
    headroom: float
    epsilon: float


POLAR_EXPRESS = Iteration(
    (
        (8.156554524902461, -22.48329292557795, 15.878769915207462),
        (4.042929935166739, -2.808917465908714, 0.5000178451051316),
        (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
        (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
        (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
    ),
    headroom=1.01,
    epsilon=1e-6,
)
"""Amsel et al., arXiv 2505.16932, for five steps; coefficients as nanochat has them."""

NEWTON_SCHULZ = Iteration(((3.4445, -4.7750, 2.0315),) * 5, headroom=1.0, epsilon=1e-7)
"""Jordan et al., 2024: the quintic of the first Muon, which nanocode trains with."""


class NesterovState(NamedTuple):
    step: jax.Array
    momentum: optax.Updates


def nesterov(momentum: Schedule) -> optax.GradientTransformation:
    """Nesterov momentum as a moving average: m <- mu m + (1-mu) g gives mu m + (1-mu) g, mu by the step."""

    def init(parameters: optax.Params) -> NesterovState:
        return NesterovState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, parameters))

    def update(
        gradients: optax.Updates, state: NesterovState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, NesterovState]:
        del parameters
        mu = momentum(state.step)

        def average(old: jax.Array, new: jax.Array) -> jax.Array:
            return mu * old + (1 - mu) * new

        buffer = jax.tree.map(average, state.momentum, gradients)
        return jax.tree.map(average, buffer, gradients), NesterovState(state.step + 1, buffer)

    return optax.GradientTransformation(init, update)


def _stateless(change: Callable[[jax.Array], jax.Array]) -> optax.GradientTransformation:
    return optax.stateless_with_tree_map(lambda update, parameter: change(update))


def _norm(stack: jax.Array, axis: int | tuple[int, int] = (-2, -1)) -> jax.Array:
    return jnp.linalg.norm(stack, axis=axis, keepdims=True)


def equalise_rows() -> optax.GradientTransformation:
    """MuonEq (arXiv 2603.28254): every row to the root mean square of the rows' norms, so that the spectrum that is to
    be orthogonalised is better conditioned.
    """

    def equalise(stack: jax.Array) -> jax.Array:
        rows = stack.shape[_ROW]
        return stack * (_norm(stack) / rows**0.5 / jnp.maximum(_norm(stack, _COLUMN), _NORM_FLOOR))

    return _stateless(equalise)


def orthogonalise(stack: jax.Array, iteration: Iteration = POLAR_EXPRESS, in_bfloat16: bool = False) -> jax.Array:
    """About the nearest semi-orthogonal matrix of each (in, out) matrix in a (N, in, out) stack, typed as it is.

    A matrix of zeros stays one.
    """
    tall = stack.shape[-2] > stack.shape[-1]
    x = stack.swapaxes(-1, -2) if tall else stack
    x = x.astype(jnp.bfloat16) if in_bfloat16 else x
    x = x / (iteration.headroom * _norm(x) + iteration.epsilon)

    def step(x: jax.Array, coefficients: jax.Array) -> tuple[jax.Array, None]:
        a, b, c = coefficients
        gram = x @ x.swapaxes(-1, -2)
        return a * x + (b * gram + c * gram @ gram) @ x, None

    x, _ = jax.lax.scan(step, x, jnp.asarray(iteration.coefficients, x.dtype))  # a loop: a fifth of the compiling
    return (x.swapaxes(-1, -2) if tall else x).astype(stack.dtype)


def orthogonal(iteration: Iteration, in_bfloat16: bool) -> optax.GradientTransformation:
    """`orthogonalise` as a transformation of stacks."""
    return _stateless(lambda stack: orthogonalise(stack, iteration, in_bfloat16))


def rescale() -> optax.GradientTransformation:
    """Muon+ (arXiv 2602.21545): to the Frobenius norm of a semi-orthogonal matrix, which the iteration only nears."""

    def scaled(stack: jax.Array) -> jax.Array:
        return stack * (min(stack.shape[-2:]) ** 0.5 / jnp.maximum(_norm(stack), _NORM_FLOOR))

    return _stateless(scaled)


class NormuonState(NamedTuple):
    """One (N, 1, out) or (N, in, 1) array a stack: the mean square of each line of the longer side."""

    second: optax.Updates


def normuon(beta2: float) -> optax.GradientTransformation:
    """NorMuon (arXiv 2510.05491): divide each line by the root of its running mean square, keep the Frobenius norm.

    As nanochat has it: a line is a row, unless there are fewer rows than columns; no bias correction.
    """

    def axis(stack: jax.Array) -> int:
        return _COLUMN if stack.shape[_ROW] >= stack.shape[_COLUMN] else _ROW

    def init(stacks: optax.Params) -> NormuonState:
        return NormuonState(
            jax.tree.map(lambda stack: jnp.zeros_like(jnp.mean(stack, axis(stack), keepdims=True)), stacks)
        )

    def mean_square(stack: jax.Array) -> jax.Array:
        return jnp.mean(stack * stack, axis(stack), keepdims=True)

    def normalise(stack: jax.Array, square: jax.Array, second: jax.Array) -> jax.Array:
        gain = jax.lax.rsqrt(jnp.maximum(second, _VARIANCE_FLOOR))
        length = stack.shape[axis(stack)]
        before, after = (
            jnp.sqrt(length * jnp.sum(values, (-2, -1), keepdims=True)) for values in (square, square * gain * gain)
        )
        return stack * (gain * (before / jnp.maximum(after, _VARIANCE_FLOOR)))

    def update(
        stacks: optax.Updates, state: NormuonState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, NormuonState]:
        del parameters
        squares = jax.tree.map(mean_square, stacks)
        second = jax.tree.map(lambda old, new: beta2 * old + (1 - beta2) * new, state.second, squares)
        return jax.tree.map(normalise, stacks, squares, second), NormuonState(second)

    return optax.GradientTransformation(init, update)


class DecayState(NamedTuple):
    step: jax.Array


def decay_weights(rate: Schedule, cautious: bool) -> optax.GradientTransformation:
    """Add rate(step) x parameter to the direction, so that what follows scales both.

    Cautious (Chen et al., arXiv 2510.12402): only where the step would shrink the parameter anyway.
    """

    def init(parameters: optax.Params) -> DecayState:
        del parameters
        return DecayState(jnp.zeros((), jnp.int32))

    def update(
        directions: optax.Updates, state: DecayState, parameters: optax.Params | None = None
    ) -> tuple[optax.Updates, DecayState]:
        if parameters is None:
            raise ValueError("decay_weights needs the parameters: call update(gradients, state, parameters)")
        now = rate(state.step)

        def decayed(direction: jax.Array, parameter: jax.Array) -> jax.Array:
            decay = now * parameter
            return direction + (jnp.where(direction * parameter >= 0, decay, 0) if cautious else decay)

        return jax.tree.map(decayed, directions, parameters), DecayState(state.step + 1)

    return optax.GradientTransformation(init, update)


def scale_by_shape() -> optax.GradientTransformation:
    """Times sqrt(max(1, rows / columns)) (Muon): a matrix that widens the stream moves further."""
    return _stateless(lambda update: update * max(1.0, update.shape[_ROW] / update.shape[_COLUMN]) ** 0.5)
