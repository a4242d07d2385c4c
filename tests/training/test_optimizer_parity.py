"""Ten steps on given gradients against NumPy writings of nanochat's MuonAdamW and of nanocode's Muon.

The references are float64, keep torch's layout, (out, in), and loop over steps and matrices. Ours, in float32, must
agree within 1e-6, as a share of the larger of 1 and the array's largest number: some ten roundings of float32. (Against
nanochat's own class, in PyTorch on these very inputs, the largest share was 1.5e-7 for Muon and 5.2e-7 for AdamW.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import jax
import numpy as np
import optax
import pytest
from muon_reference import COEFFICIENTS

from nanocode.config import AdamGroupConfig, OptimizerConfig
from nanocode.training.optimizer import build_optimizer

STEPS = 10
SEEDS = range(1, STEPS + 1)
TOLERANCE = 1e-6
WIDTH = 48
DECAY = 0.6
BATCH_FACTOR = 0.7

SHORT_SCHEDULE: dict[str, Any] = {"warmup_steps": 3, "warmdown_fraction": 0.5, "muon_momentum_warmup_steps": 4}
"""So that ten steps cross every corner: rates rise for 3, momentum for 4, both fall over the last 5."""

MATRICES = {
    ("attention", "query"): (WIDTH, WIDTH),
    ("attention", "key"): (WIDTH, WIDTH // 2),
    ("attention", "value"): (WIDTH, WIDTH // 2),
    ("attention", "output"): (WIDTH, WIDTH),
    ("attention", "value_gate"): (12, 2),
    ("mlp", "up"): (WIDTH, 4 * WIDTH),
    ("mlp", "down"): (4 * WIDTH, WIDTH),
}
"""Square, tall and wide, two shapes of them shared; (in, out) as the model stores them."""


@dataclass(frozen=True)
class Adam:
    """A row of nanochat's table of groups."""

    lr: float
    betas: tuple[float, float]
    decay: float
    width_scaled: bool = False
    batch_scaled: bool = True
    epsilon: float = 1e-10


NANOCHAT_GROUPS = {
    "unembedding": Adam(0.008, (0.8, 0.96), 0.01, width_scaled=True),
    "embedding": Adam(0.3, (0.8, 0.995), 0.001, width_scaled=True),
    "value_embeddings": Adam(0.15, (0.8, 0.995), 0.01, width_scaled=True),
    "stream_scale": Adam(0.005, (0.8, 0.95), 0.05),
    "embedding_scale": Adam(0.5, (0.96, 0.95), 0.0),
    "smear": Adam(0.2, (0.8, 0.95), 0.0, batch_scaled=False),
    "backout_strength": Adam(0.2, (0.8, 0.95), 0.0, batch_scaled=False),
}


def draw(seed: int, scale: float) -> dict[str, Any]:
    """A tree as a two-layer model's with everything on."""
    rng = np.random.default_rng(seed)

    def normal(*size: int) -> np.ndarray:
        return np.asarray(scale * rng.normal(size=size), np.float32)

    blocks: dict[int, dict[str, dict[str, np.ndarray]]] = {layer: {"attention": {}, "mlp": {}} for layer in range(2)}
    for block in blocks.values():
        for (part, name), size in MATRICES.items():
            block[part][name] = normal(*size)
    return {
        "blocks": blocks,
        "embedding": normal(40, WIDTH),
        "unembedding": normal(40, WIDTH),
        "value_embeddings": normal(1, 40, WIDTH // 2),
        "stream_scale": normal(2),
        "embedding_scale": normal(2),
        "smear": {"gate": normal(24, 1), "strength": normal()},
        "backout_strength": normal(),
    }


@dataclass(frozen=True)
class Run:
    """Parameters before and after ten steps, and the gradients between."""

    before: dict[str, Any]
    after: dict[str, Any]
    gradients: list[dict[str, Any]]


def ten_steps(config: OptimizerConfig, parameters: dict[str, Any], gradients: list[dict[str, Any]]) -> Run:
    optimizer = build_optimizer(config, STEPS, BATCH_FACTOR)

    # Without LLVM's passes: compiling is nearly all of the time that these tests take.
    @partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})
    def step(parameters: Any, state: Any, gradient: Any) -> tuple[Any, Any]:
        updates, state = optimizer.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    state, after = optimizer.init(parameters), parameters
    for gradient in gradients:
        after, state = step(after, state, gradient)
    return Run(parameters, jax.tree.map(np.asarray, after), gradients)


@lru_cache
def whole_model(config: OptimizerConfig) -> Run:
    """Gradients of four scales in turn, so that a moment's memory shows."""
    return ten_steps(config, draw(0, 0.3), [draw(seed, 10.0 ** -(seed % 4)) for seed in SEEDS])


def rate(it: int, warmup: int, warmdown: int, final: float) -> float:
    if it < warmup:
        return (it + 1) / warmup
    if it <= STEPS - warmdown:
        return 1.0
    progress = (STEPS - it) / warmdown
    return progress + (1 - progress) * final


def nanochat_momentum(it: int) -> float:
    if it < 4:
        return 0.85 + (0.97 - 0.85) * it / 4
    if it >= 5:
        return 0.97 + (0.90 - 0.97) * (it - 5) / 5
    return 0.97


def polar_express(x: np.ndarray) -> np.ndarray:
    x = x / (1.01 * np.linalg.norm(x) + 1e-6)
    for a, b, c in COEFFICIENTS:
        if x.shape[0] > x.shape[1]:
            small = x.T @ x
            x = a * x + x @ (b * small + c * small @ small)
        else:
            small = x @ x.T
            x = a * x + (b * small + c * small @ small) @ x
    return x


def reference_nanochat_muon(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """One (rows, columns) matrix through ten of nanochat's Muon steps, in float64."""
    rows, columns = p.shape
    momentum, second = np.zeros_like(p), np.zeros(rows if rows >= columns else columns)
    for it, gradient in enumerate(gradients):
        mu = nanochat_momentum(it)
        momentum = momentum + (1 - mu) * (gradient - momentum)
        g = gradient + mu * (momentum - gradient)
        row_norms = np.maximum(np.sqrt((g**2).sum(1)), 1e-6)
        g = np.diag(np.linalg.norm(g) / math.sqrt(rows) / row_norms) @ g
        g = polar_express(g)
        g = g * math.sqrt(min(rows, columns)) / max(np.linalg.norm(g), 1e-6)
        second = 0.9 * second + 0.1 * (g**2).mean(1 if rows >= columns else 0)
        step = 1 / np.sqrt(np.maximum(second, 1e-10))
        normalised = g * (step[:, None] if rows >= columns else step[None, :])
        g = normalised * np.linalg.norm(g) / max(np.linalg.norm(normalised), 1e-10)
        lr = 0.02 * BATCH_FACTOR * rate(it, 3, 5, 0.05) * math.sqrt(max(1, rows / columns))
        decay = DECAY * (1 + math.cos(math.pi * it / STEPS)) / 2
        p = p - lr * g - lr * decay * p * (g * p >= 0)
    return p


def reference_nanocode_muon(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
    """One (rows, columns) matrix through ten of nanocode's Muon steps, in float64."""
    rows, columns = p.shape
    momentum = np.zeros_like(p)
    for it, gradient in enumerate(gradients):
        mu = 0.85 + (0.95 - 0.85) * min(it / 4, 1)
        momentum = mu * momentum + (1 - mu) * gradient
        x = mu * momentum + (1 - mu) * gradient
        x = x.T if rows > columns else x
        x = x / (np.linalg.norm(x) + 1e-7)
        for _ in range(5):
            small = x @ x.T
            x = 3.4445 * x + (-4.7750 * small + 2.0315 * small @ small) @ x
        x = x.T if rows > columns else x
        p = p - 0.02 * BATCH_FACTOR * rate(it, 0, 4, 0.0) * math.sqrt(max(1, rows / columns)) * x
    return p


def reference_adamw(p: np.ndarray, gradients: list[np.ndarray], group: Adam, rates: Any) -> np.ndarray:
    """Any array through ten AdamW steps, decay first, in float64."""
    first, second = np.zeros_like(p), np.zeros_like(p)
    beta1, beta2 = group.betas
    for it, gradient in enumerate(gradients):
        lr = group.lr * rates(it) * (BATCH_FACTOR if group.batch_scaled else 1)
        lr *= (WIDTH / 768) ** -0.5 if group.width_scaled else 1
        p = p * (1 - lr * group.decay)
        first = beta1 * first + (1 - beta1) * gradient
        second = beta2 * second + (1 - beta2) * gradient**2
        denominator = np.sqrt(second / (1 - beta2 ** (it + 1))) + group.epsilon
        p = p - lr / (1 - beta1 ** (it + 1)) * first / denominator
    return p


def difference(path: list[Any], run: Run, reference: Any, transpose: bool = False) -> float:
    """Largest difference between our array at `path` of the tree and the reference's: a share, as said above."""

    def pick(tree: Any) -> np.ndarray:
        for name in path:
            tree = tree[name]
        array = np.asarray(tree, np.float64)
        return array.T if transpose else array

    expected = reference(pick(run.before), [pick(gradient) for gradient in run.gradients])
    assert np.abs(expected - pick(run.before)).max() > 1e-2  # a reference that moves nothing proves nothing
    return float(np.abs(pick(run.after) - expected).max() / max(1.0, np.abs(expected).max()))


def muon_differences(run: Run, reference: Any) -> dict[str, float]:
    return {
        f"{layer}.{name}": difference(["blocks", layer, part, name], run, reference, transpose=True)
        for layer in range(2)
        for part, name in MATRICES
    }


NANOCHAT = OptimizerConfig(recipe="nanochat", muon_weight_decay=DECAY, muon_bfloat16=False, **SHORT_SCHEDULE)
NANOCODE = OptimizerConfig(recipe="nanocode", muon_bfloat16=False, muon_momentum_warmup_steps=4)


@pytest.mark.parametrize(
    ("config", "reference"), [(NANOCHAT, reference_nanochat_muon), (NANOCODE, reference_nanocode_muon)]
)
def test_ten_muon_steps_equal_the_recipes(config: OptimizerConfig, reference: Any) -> None:
    differences = muon_differences(whole_model(config), reference)
    assert {name: value for name, value in differences.items() if value > TOLERANCE} == {}


@pytest.mark.parametrize("name", NANOCHAT_GROUPS)
def test_ten_adamw_steps_of_every_group_equal_nanochats(name: str) -> None:
    group = NANOCHAT_GROUPS[name]

    def reference(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
        return reference_adamw(p, gradients, group, lambda it: rate(it, 3, 5, 0.05))

    for path in [[name, "gate"], [name, "strength"]] if name == "smear" else [[name]]:
        assert difference(path, whole_model(NANOCHAT), reference) < TOLERANCE


@pytest.mark.parametrize(("name", "lr"), [("embedding", 0.3), ("unembedding", 0.004)])
def test_ten_adamw_steps_of_the_tables_equal_nanocodes(name: str, lr: float) -> None:
    def reference(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
        group = Adam(lr, (0.8, 0.95), 0.0, width_scaled=True)
        return reference_adamw(p, gradients, group, lambda it: rate(it, 0, 4, 0.0))

    assert difference([name], whole_model(NANOCODE), reference) < TOLERANCE


def one_matrix(config: OptimizerConfig) -> float:
    """The difference from nanochat's on a single small matrix."""

    def tree(seed: int, scale: float) -> dict[str, Any]:
        rng = np.random.default_rng(seed)
        return {
            "embedding": np.ones((1, WIDTH), np.float32),
            "blocks": {0: {"mlp": {"up": np.asarray(scale * rng.normal(size=(8, 16)), np.float32)}}},
        }

    run = ten_steps(config, tree(0, 0.3), [tree(seed, 10.0 ** -(seed % 4)) for seed in SEEDS])
    return difference(["blocks", 0, "mlp", "up"], run, reference_nanochat_muon, transpose=True)


@pytest.mark.parametrize(
    "change",
    [
        {"muon_equalise": False},
        {"muon_rescale": False},
        {"muon_normalise": False},
        {"muon_normalise_beta2": 0.95},
        {"muon_cautious": False},
        {"muon_decay_schedule": "constant"},
        {"muon_momentum_start": 0.9},
        {"muon_momentum_end": 0.97},
        {"muon_iteration": "newton_schulz"},
        {"muon_bfloat16": True},
    ],
)
def test_every_part_of_nanochats_muon_can_be_told(change: dict[str, Any]) -> None:
    """A reference that agreed with the part left out as well would not test it."""
    assert one_matrix(NANOCHAT.model_copy(update=change)) > 1e-4


def test_the_matrix_by_which_parts_are_told_agrees() -> None:
    assert one_matrix(NANOCHAT) < TOLERANCE


def test_a_group_takes_what_the_config_gives_it() -> None:
    given = AdamGroupConfig(lr=0.1, beta1=0.5, beta2=0.9, epsilon=1e-3, weight_decay=0.2, batch_scaled=False)
    parameters = {"embedding": np.ones((1, WIDTH), np.float32), "embedding_scale": np.ones(3, np.float32)}
    gradients = [parameters | {"embedding_scale": np.full(3, 0.01 * seed, np.float32)} for seed in SEEDS]
    run = ten_steps(NANOCHAT.model_copy(update={"embedding_scale": given}), parameters, gradients)

    def reference(p: np.ndarray, gradients: list[np.ndarray]) -> np.ndarray:
        group = Adam(0.1, (0.5, 0.9), 0.2, batch_scaled=False, epsilon=1e-3)
        return reference_adamw(p, gradients, group, lambda it: rate(it, 3, 5, 0.05))

    assert difference(["embedding_scale"], run, reference) < TOLERANCE
