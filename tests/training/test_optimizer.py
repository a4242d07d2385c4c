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
from muon_reference import numpy_polar_express

from nanocode.config import AdamGroupConfig, OptimizerConfig
from nanocode.model.gpt import GPT
from nanocode.training.optimizer import build_optimizer, label

MakeModel = Callable[..., GPT]

EVERYTHING = {"value_embeddings": True, "layer_scalars": True, "backout": True, "smear": True, "kv_heads": 1}


def random_parameters(seed: int) -> dict[str, Any]:
    """A tree as a model's: one block with matrices of three shapes, and one or two parameters of every group."""
    rng = np.random.default_rng(seed)

    def draw(*size: int) -> np.ndarray:
        return np.asarray(rng.normal(size=size), np.float32)

    return {
        "blocks": {
            0: {"attention": {"query": draw(8, 8), "key": draw(8, 8)}, "mlp": {"up": draw(8, 32), "down": draw(32, 8)}}
        },
        "embedding": draw(20, 8),
        "unembedding": draw(20, 8),
        "value_embeddings": draw(1, 20, 8),
        "stream_scale": draw(1),
        "embedding_scale": draw(1),
        "smear": {"gate": draw(24, 1), "strength": draw()},
        "backout_strength": draw(),
    }


def run(config: OptimizerConfig, gradients: list[Any], parameters: Any, **kwargs: Any) -> Any:
    optimizer = build_optimizer(config, steps=10, **kwargs)
    state = optimizer.init(parameters)
    for gradient in gradients:
        updates, state = optimizer.update(gradient, state, parameters)
        parameters = optax.apply_updates(parameters, updates)
    return parameters


CONFIG = OptimizerConfig(
    muon_momentum=0.9, muon_weight_decay=0.1, warmup_steps=2, embedding=AdamGroupConfig(weight_decay=0.05)
)
"""The plain recipe with decay and some warm-up."""

RATES = [min(1, (step + 1) / 2, (10 - step) / 5) for step in range(10)]
"""By the trapezoid's description, for its run of 10 steps: 2 of warm-up and the last half down to zero."""


def test_three_plain_muon_steps_equal_the_formulas() -> None:
    """Nesterov momentum from zero, Polar Express, decay; sqrt(max(1, out/in)) on both; (in, out) kernels."""
    parameters, gradients = random_parameters(0), [random_parameters(seed) for seed in (1, 2, 3)]
    result = run(CONFIG, gradients, parameters)
    for part, name in (("attention", "query"), ("attention", "key"), ("mlp", "up"), ("mlp", "down")):
        p, momentum = parameters["blocks"][0][part][name].astype(np.float64), 0.0
        for tree, rate in zip(gradients, RATES, strict=False):
            gradient = tree["blocks"][0][part][name].astype(np.float64)
            momentum = 0.9 * momentum + 0.1 * gradient
            direction = numpy_polar_express(0.9 * momentum + 0.1 * gradient)
            p = p - 0.02 * rate * max(1, p.shape[1] / p.shape[0]) ** 0.5 * (direction + 0.1 * p)
        np.testing.assert_allclose(result["blocks"][0][part][name], p, atol=1e-5)


def test_the_first_adamw_step_is_the_rate_times_the_sign() -> None:
    parameters, gradient = random_parameters(0), random_parameters(1)
    moved = run(OptimizerConfig(), [gradient], parameters)["embedding"] - parameters["embedding"]
    np.testing.assert_allclose(moved, -0.3 * np.sign(gradient["embedding"]), rtol=1e-4)


@pytest.mark.parametrize("halve", [{"lr_factor": 0.5}, {"config": CONFIG.model_copy(update={"lr_scale": 0.5})}])
def test_the_batch_s_factor_and_the_config_s_scale_every_plain_rate(halve: dict[str, Any]) -> None:
    parameters, gradient = random_parameters(0), random_parameters(1)
    whole, half = (run(gradients=[gradient], parameters=parameters, **{"config": CONFIG, **by}) for by in ({}, halve))
    jax.tree.map(lambda p, a, b: np.testing.assert_allclose(b - p, 0.5 * (a - p), atol=3e-7), parameters, whole, half)


@pytest.mark.parametrize("tied", [False, True])
def test_every_parameter_of_the_whole_model_has_exactly_one_group(tiny_model: MakeModel, tied: bool) -> None:
    parameters = nnx.to_pure_dict(nnx.state(tiny_model(tie_embeddings=tied, **EVERYTHING), nnx.Param))
    groups = jax.tree.map_with_path(label, parameters)
    expected = {
        "embedding": "embedding",
        "unembedding": "unembedding",
        "value_embeddings": "value_embeddings",
        "stream_scale": "stream_scale",
        "embedding_scale": "embedding_scale",
        "smear": {"gate": "smear_backout", "strength": "smear_backout"},
        "backout_strength": "smear_backout",
    }
    assert {name: group for name, group in groups.items() if name != "blocks"} == {
        name: group for name, group in expected.items() if not (tied and name == "unembedding")
    }
    assert Counter(jax.tree.leaves(groups["blocks"])) == {"matrix": 2 * 6 + 1}  # and one gate of value embeddings


@pytest.mark.parametrize("parameters", [{"adapter": np.ones((2, 2))}, {"blocks": {0: {"gain": np.ones(2)}}}])
def test_a_parameter_that_no_group_is_meant_for_is_refused(parameters: dict[str, Any]) -> None:
    """Rather than trained by whatever comes last."""
    with pytest.raises(ValueError, match=r"parameter (adapter|blocks\.0\.gain) .* belongs to no optimizer group"):
        build_optimizer(CONFIG, steps=10).init({"embedding": np.ones((2, 2)), **parameters})


@pytest.mark.parametrize(
    ("group", "moves"),
    [
        ("muon", {"blocks"}),
        ("embedding", {"embedding"}),
        ("unembedding", {"unembedding"}),
        ("value_embeddings", {"value_embeddings"}),
        ("stream_scale", {"stream_scale"}),
        ("embedding_scale", {"embedding_scale"}),
        ("smear_backout", {"smear", "backout_strength"}),
    ],
)
def test_each_rate_moves_its_own_parameters_and_all_of_them(group: str, moves: set[str]) -> None:
    adam = ("embedding", "unembedding", "value_embeddings", "stream_scale", "embedding_scale", "smear_backout")
    rates = {name: AdamGroupConfig(lr=0.1 * (name == group)) for name in adam}
    parameters = random_parameters(0)
    after = run(OptimizerConfig(muon_lr=0.1 * (group == "muon"), **rates), [random_parameters(1)], parameters)
    changed = jax.tree.map(lambda a, b: bool(np.any(a != b)), parameters, after)
    assert {name for name, value in changed.items() if all(jax.tree.leaves(value))} == moves
    assert {name for name, value in changed.items() if any(jax.tree.leaves(value))} == moves


@pytest.mark.parametrize("recipe", ["plain", "nanochat"])
def test_the_state_is_two_moments_for_adamw_and_little_more_than_one_for_muon(recipe: str) -> None:
    """Momentum, and of NorMuon one number for each line of the longer side; all of it arrays, as a checkpoint needs."""
    config = OptimizerConfig.model_validate({"recipe": recipe, "muon_weight_decay": 0.1})
    parameters = random_parameters(0)
    state = build_optimizer(config, steps=10).init(parameters)
    assert all(isinstance(leaf, jax.Array | np.ndarray) for leaf in jax.tree.leaves(state))
    matrices = sum(leaf.size for leaf in jax.tree.leaves(parameters["blocks"]))
    others = sum(leaf.size for leaf in jax.tree.leaves(parameters)) - matrices
    lines = (8 + 8 + 32 + 32) if recipe == "nanochat" else 0
    counters = [leaf for leaf in jax.tree.leaves(state) if leaf.dtype == jnp.int32]
    assert {leaf.shape for leaf in counters} == {()}
    assert sum(leaf.size for leaf in jax.tree.leaves(state)) - len(counters) == matrices + lines + 2 * others


def test_an_update_without_the_parameters_is_refused() -> None:
    optimizer = build_optimizer(CONFIG, steps=10)
    with pytest.raises(ValueError, match=r"the optimizer needs the parameters: call update\("):
        optimizer.update(random_parameters(1), optimizer.init(random_parameters(0)))
