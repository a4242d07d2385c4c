"""DPO on a tiny model: exact at the start, and stopped when the chosen replies are being destroyed."""

from __future__ import annotations

import math

import numpy as np
import optax
import pytest
from flax import nnx

from nanocode.config import ModelConfig
from nanocode.conversation import Rendered
from nanocode.model.gpt import GPT
from nanocode.training.journal import Report
from nanocode.training.loop import train
from nanocode.training.pairs import Pair, batch
from nanocode.training.preference import DisplacementGuard, GuardTripped, pair_loss, score, wins
from nanocode.training.step import initial_state, make_step

CONTEXT, VOCAB, PAD = 16, 64, 0
CONFIG = ModelConfig(depth=1, width=32, heads=2, context_tokens=CONTEXT, tie_embeddings=True, dtype="float32")


@pytest.fixture(scope="module")
def model() -> GPT:
    return GPT(CONFIG, VOCAB, nnx.Rngs(0))


@pytest.fixture(scope="module")
def pairs() -> list[Pair]:
    """Style pairs: the sides share most of their tokens, where displacement is worst."""
    generator = np.random.default_rng(0)
    found = []
    for index in range(8):
        shared = generator.integers(1, VOCAB, 10).tolist()
        mask = [0] * 4 + [1] * 7
        found.append(Pair(f"p{index}", Rendered([*shared, 3], mask), Rendered([*shared, 5], mask)))
    return found


def run(model: GPT, pairs: list[Pair], lr: float, steps: int, nll_weight: float) -> list[Report]:
    reference = score(model, pairs, PAD)
    optimizer = optax.sgd(lr)
    step = make_step(model, pair_loss(0.1, nll_weight), optimizer)
    _, journal = train(
        lambda: initial_state(GPT(CONFIG, VOCAB, nnx.Rngs(0)), optimizer),
        *(step, lambda index: batch(pairs, reference, CONTEXT, PAD), steps),
        guards=[DisplacementGuard(2.0)],
    )
    return journal.history


def test_at_the_start_the_loss_is_ln_2_and_ties_count_half(model: GPT, pairs: list[Pair]) -> None:
    (report,) = run(model, pairs, lr=0.0, steps=1, nll_weight=0.0)
    assert report.metrics["loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert report.metrics["margin"] == pytest.approx(0.0, abs=1e-5)
    assert report.metrics["accuracy"] == 0.5


def test_training_widens_the_margin(model: GPT, pairs: list[Pair]) -> None:
    reports = run(model, pairs, lr=0.05, steps=20, nll_weight=1.0)
    assert reports[-1].metrics["margin"] > reports[0].metrics["margin"]
    assert reports[-1].metrics["accuracy"] == 1.0


def test_scores_do_not_depend_on_order_or_company(model: GPT, pairs: list[Pair]) -> None:
    together, alone = score(model, pairs[::-1], PAD), score(model, pairs[:1], PAD)
    assert alone[pairs[0].id] == pytest.approx(together[pairs[0].id], abs=1e-5)


def test_the_guard_stops_a_run_whose_chosen_replies_become_unlikely() -> None:
    guard = DisplacementGuard(2.0)
    with pytest.raises(GuardTripped, match=r"less likely by step .*lower dpo\.lr or raise dpo\.nll_weight"):
        for step in range(1, 40):
            guard.judge(Report(step, 40, 0.1, {"loss": 0.0003, "accuracy": 1.0, "chosen_shift": -0.2 * step}))


def test_the_guard_forgives_one_bad_batch() -> None:
    guard = DisplacementGuard(2.0)
    for step, shift in enumerate([0.1, -6.0, 0.1, 0.2], start=1):
        guard.judge(Report(step, 4, 0.1, {"loss": 0.5, "chosen_shift": shift}))


def test_the_guard_remembers_after_a_resume() -> None:
    """Without its history it would let a damaged model go on for some steps more."""
    reports = [Report(step, 40, 0.1, {"loss": 0.1, "chosen_shift": -0.2 * step}) for step in range(1, 40)]
    straight, resumed = DisplacementGuard(2.0), DisplacementGuard(2.0)
    with pytest.raises(GuardTripped) as first:
        for report in reports:
            straight.judge(report)
    resumed.begin(reports[:8])
    with pytest.raises(GuardTripped) as second:
        for report in reports[8:]:
            resumed.judge(report)
    assert str(first.value) == str(second.value)


def test_a_margin_within_float_noise_is_a_tie() -> None:
    assert wins(np.array([0.5, -0.5, 1e-6, -1e-6])).tolist() == [1.0, 0.0, 0.5, 0.5]
