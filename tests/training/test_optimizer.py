from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from nanocode.config import OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.training.optimizer import build_optimizer, label, orthogonalise

MakeModel = Callable[..., GPT]
MATRICES = ("query", "key", "value", "output", "up", "down")

COEFFICIENTS = [
    (8.156554524902461, -22.48329292557795, 15.878769915207462),
    (4.042929935166739, -2.808917465908714, 0.5000178451051316),
    (3.8916678022926607, -2.772484153217685, 0.5060648178503393),
    (3.285753657755655, -2.3681294933425376, 0.46449024233003106),
    (2.3465413258596377, -1.7097828382687081, 0.42323551169305323),
]


def numpy_polar_express(matrix: np.ndarray) -> np.ndarray:
    """The iteration on the singular values themselves: each is mapped by the polynomial a s + b s^3 + c s^5."""
    left, values, right = np.linalg.svd(matrix.astype(np.float64), full_matrices=False)
    values = values / (1.01 * np.linalg.norm(values) + 1e-6)
    for a, b, c in COEFFICIENTS:
        values = a * values + b * values**3 + c * values**5
    return (left * values) @ right


def random_parameters(seed: int) -> dict[str, Any]:
    """A tree as a model's: one block with matrices of two shapes, both tables, a scalar and a gate."""
    rng = np.random.default_rng(seed)

    def draw(*size: int) -> np.ndarray:
        return rng.normal(size=size).astype(np.float32)

    return {
        "blocks": {
            0: {"attention": {"query": draw(8, 8), "key": draw(8, 8)}, "mlp": {"up": draw(8, 32), "down": draw(32, 8)}}
        },
        "embedding": draw(20, 8),
        "unembedding": draw(20, 8),
        "smear": {"gate": draw(24, 1), "strength": draw()},
    }


def run(config: OptimizerConfig, gradients: list[Any], parameters: Any, **kwargs: Any) -> Any:
    optimizer = build_optimizer(config, steps=10, **kwargs)
    state = optimizer.init(parameters)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


def rates(config: OptimizerConfig) -> list[float]:
    """By the trapezoid's description, for a run of 10 steps with 2 of warm-up and the last half down to zero."""
    assert (config.warmup_steps, config.warmdown_fraction, config.final_lr_fraction) == (2, 0.5, 0.0)
    return [min(1, (step + 1) / 2, (10 - step) / 5) for step in range(10)]


CONFIG = OptimizerConfig(
    muon_lr=0.02,
    muon_momentum=0.9,
    muon_weight_decay=0.1,
    embedding_lr=0.3,
    unembedding_lr=0.008,
    scalar_lr=0.2,
    adam_beta1=0.8,
    adam_beta2=0.95,
    adam_weight_decay=0.05,
    warmup_steps=2,
    warmdown_fraction=0.5,
)


@pytest.mark.parametrize("size", [(32, 32), (32, 128), (128, 32), (16, 17)])
def test_polar_express_is_its_polynomial_on_the_singular_values(size: tuple[int, int]) -> None:
    stack = np.random.default_rng(0).normal(size=(3, *size)).astype(np.float32)
    result = jax.jit(orthogonalise)(stack)
    np.testing.assert_allclose(result, [numpy_polar_express(matrix) for matrix in stack], atol=2e-4)


@pytest.mark.parametrize("size", [(32, 128), (128, 32)])
def test_polar_express_brings_singular_values_near_one(size: tuple[int, int]) -> None:
    """Five steps reach 0.86 .. 1.14 here; of the nearest semi-orthogonal matrix all are 1."""
    stack = np.random.default_rng(0).normal(size=(5, *size)).astype(np.float32)
    values = np.linalg.svd(jax.jit(orthogonalise)(stack), compute_uv=False)
    assert np.all((values > 0.8) & (values < 1.2))
    assert np.abs(values - 1).mean() < 0.1


def test_polar_express_ignores_the_scale_of_the_gradient() -> None:
    matrix = np.random.default_rng(0).normal(size=(1, 16, 24)).astype(np.float32)
    small, large = (np.asarray(jax.jit(orthogonalise)(scale * matrix)) for scale in (1e-2, 1e4))
    np.testing.assert_allclose(small, large, atol=1e-4)


def test_a_gradient_of_zero_moves_a_matrix_nowhere() -> None:
    assert not np.any(jax.jit(orthogonalise)(np.zeros((2, 8, 4), np.float32)))


def test_three_muon_steps_equal_the_formulas() -> None:
    """Nesterov momentum from zero, Polar Express, sqrt(max(1, out/in)), decay by the same rate; (in, out) kernels."""
    parameters, gradients = random_parameters(0), [random_parameters(seed) for seed in (1, 2, 3)]
    result = run(CONFIG, gradients, parameters)
    for part, name in (("attention", "query"), ("attention", "key"), ("mlp", "up"), ("mlp", "down")):
        p, momentum = parameters["blocks"][0][part][name].astype(np.float64), 0.0
        for tree, rate in zip(gradients, rates(CONFIG), strict=False):
            gradient = tree["blocks"][0][part][name].astype(np.float64)
            momentum = 0.9 * momentum + 0.1 * gradient
            direction = numpy_polar_express(0.9 * momentum + 0.1 * gradient)
            direction *= max(1, p.shape[1] / p.shape[0]) ** 0.5
            p = p - 0.02 * rate * (direction + 0.1 * p)
        np.testing.assert_allclose(result["blocks"][0][part][name], p, atol=1e-5)


@pytest.mark.parametrize("name", ["embedding", "unembedding", "gate", "strength"])
def test_three_adamw_steps_equal_the_formulas(name: str) -> None:
    def pick(tree: dict[str, Any]) -> np.ndarray:
        return np.asarray(tree[name] if name in tree else tree["smear"][name], np.float64)

    base = {"embedding": 0.3, "unembedding": 0.008}.get(name, 0.2)
    parameters, gradients = random_parameters(0), [random_parameters(seed) for seed in (1, 2, 3)]
    p, first, second = pick(parameters), 0.0, 0.0
    for step, (tree, rate) in enumerate(zip(gradients, rates(CONFIG), strict=False), start=1):
        gradient = pick(tree)
        first = 0.8 * first + 0.2 * gradient
        second = 0.95 * second + 0.05 * gradient**2
        direction = first / (1 - 0.8**step) / (np.sqrt(second / (1 - 0.95**step)) + 1e-10)
        p = p - base * rate * (direction + 0.05 * p)
    np.testing.assert_allclose(pick(run(CONFIG, gradients, parameters)), p, atol=2e-6)


def test_the_first_adamw_step_is_the_rate_times_the_sign() -> None:
    config = CONFIG.model_copy(update={"adam_weight_decay": 0.0, "warmup_steps": 0})
    parameters, gradient = random_parameters(0), random_parameters(1)
    moved = run(config, [gradient], parameters)["embedding"] - parameters["embedding"]
    np.testing.assert_allclose(moved, -0.3 * np.sign(gradient["embedding"]), rtol=1e-4)


def test_the_factor_scales_every_rate() -> None:
    parameters, gradient = random_parameters(0), random_parameters(1)
    whole, half = (run(CONFIG, [gradient], parameters, lr_factor=factor) for factor in (1.0, 0.5))
    jax.tree.map(lambda p, a, b: np.testing.assert_allclose(b - p, 0.5 * (a - p), atol=3e-7), parameters, whole, half)


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_of_the_model_has_exactly_one_group(tiny_model: MakeModel, tied: bool) -> None:
    parameters = nnx.to_pure_dict(nnx.state(tiny_model(tie_embeddings=tied), nnx.Param))
    groups = jax.tree_util.tree_map_with_path(label, parameters)
    for block in groups["blocks"].values():
        assert {name: block[part][name] for part in block for name in block[part]} == dict.fromkeys(MATRICES, "matrix")
    assert groups["embedding"] == "embedding"
    assert groups["smear"] == {"gate": "scalar", "strength": "scalar"}
    expected = Counter({"matrix": 12, "embedding": 1, "scalar": 2, "unembedding": 0 if tied else 1})
    assert Counter(jax.tree.leaves(groups)) == +expected


@pytest.mark.parametrize(
    ("field", "moves"),
    [
        ("muon_lr", {"blocks"}),
        ("embedding_lr", {"embedding"}),
        ("unembedding_lr", {"unembedding"}),
        ("scalar_lr", {"smear"}),
    ],
)
def test_each_rate_moves_its_own_parameters_and_all_of_them(field: str, moves: set[str]) -> None:
    still = dict.fromkeys(("muon_lr", "embedding_lr", "unembedding_lr", "scalar_lr"), 0.0)
    parameters = random_parameters(0)
    after = run(OptimizerConfig(**(still | {field: 0.1})), [random_parameters(1)], parameters)
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), parameters, after)
    assert {name for name, value in changed.items() if all(jax.tree.leaves(value))} == moves
    assert {name for name, value in changed.items() if any(jax.tree.leaves(value))} == moves


def test_the_state_of_the_optimizer_holds_only_arrays() -> None:
    """A checkpoint must be able to hold it."""
    state = build_optimizer(CONFIG, steps=10).init(random_parameters(0))
    assert all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(state))
    assert jnp.asarray(jax.tree.leaves(state)[0]).dtype in (jnp.int32, jnp.float32)
