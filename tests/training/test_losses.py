from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from nanocode.model.gpt import GPT
from nanocode.training.losses import (
    Batch,
    Preference,
    language_model_loss,
    preference_loss,
    sequence_log_probs,
    target_mask,
)

MakeModel = Callable[..., GPT]
model_loss = nnx.jit(language_model_loss)

# Summed log-probs of two pairs under policy and reference; the expected figures were computed in float64.
CHOSEN, REJECTED = [-1.75, -3.0], [-2.0, -1.0]
REFERENCE_CHOSEN, REFERENCE_REJECTED = [-2.5, -3.0], [-1.5, -0.8]
CHOSEN_TOKENS = [3.0, 2.0]


def fixed_logits(logits: np.ndarray | jax.Array) -> Any:
    """A model that answers every row with the same logits (T, V): its stream is the logits, its table the identity."""
    stream = jnp.asarray(logits, jnp.float32)
    return SimpleNamespace(
        hidden=lambda ids, segments: jnp.broadcast_to(stream, (*ids.shape, stream.shape[-1])),
        final=lambda x: x,
        head=jnp.eye(stream.shape[-1]),
        vocab_size=stream.shape[-1],
        config=SimpleNamespace(softcap=1e4),
    )


def numpy_log_softmax(logits: np.ndarray) -> np.ndarray:
    logits = logits.astype(np.float64)
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


# --- masks


IDS = np.array([[0, 1, 2, 1, 0, 2, 2, 1, 0, 1]])
LOGITS = 0.5 * ((np.arange(9)[:, None] * (np.arange(3)[None, :] + 1)) % 3)
MASK = [0, 0, 0, 1, 1, 0, 0, 0, 1, 1]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        (MASK, -4.639421),
        ([0, 0, 0, 0, 1, 1, 0, 0, 0, 1], -3.959152),  # all one to the right
        ([0, 0, 0, 1, 1, 1, 1, 0, 1, 1], -7.999961),  # a tool result too
        ([0, 0, 0, 1, 0, 0, 0, 0, 1, 0], -2.360539),  # turn ends left out
    ],
)
def test_mask_t_trains_token_t(mask: list[int], expected: float) -> None:
    """One token of offset decides which of four sums comes out."""
    batch = Batch(IDS, np.array([mask]), np.zeros_like(IDS))
    total, count = sequence_log_probs(fixed_logits(LOGITS), batch)
    assert float(total[0]) == pytest.approx(expected, abs=2e-6)
    assert float(count[0]) == sum(mask)


def test_the_first_token_of_a_row_or_document_is_no_target() -> None:
    segments = np.array([[0, 0, 0, 1, 1, 2, -1, -1]])
    batch = Batch(np.zeros_like(segments), np.array([[1, 1, 1, 1, 1, 1, 0, 0]]), segments)
    assert target_mask(batch).tolist() == [[1, 1, 0, 1, 0, 0, 0]]


# --- next-token loss


def random_batch(tokens: int = 21, vocab: int = 300) -> Batch:
    rng = np.random.default_rng(0)
    return Batch(
        rng.integers(0, vocab, (3, tokens)),
        rng.integers(0, 2, (3, tokens)),
        np.sort(rng.integers(0, 3, (3, tokens)), axis=1),
    )


def test_the_loss_is_the_mean_over_the_targets_that_count() -> None:
    batch, logits = random_batch(vocab=7), np.random.default_rng(1).normal(0, 3, (20, 7))
    log_probs = numpy_log_softmax(logits)
    counted = [
        log_probs[t, batch.ids[row, t + 1]]
        for row in range(3)
        for t in range(20)
        if batch.mask[row, t + 1] and batch.segments[row, t] == batch.segments[row, t + 1]
    ]
    assert float(language_model_loss(fixed_logits(logits), batch)) == pytest.approx(-np.mean(counted), rel=1e-6)


def test_the_gradient_to_the_logits_is_softmax_minus_one_hot() -> None:
    batch, logits = random_batch(vocab=7), np.random.default_rng(1).normal(0, 3, (3, 20, 7))
    gradient = jax.grad(lambda free: language_model_loss(fixed_logits(free), batch))(jnp.asarray(logits))
    mask = batch.mask[:, 1:] * (batch.segments[:, 1:] == batch.segments[:, :-1])
    expected = (np.exp(numpy_log_softmax(logits)) - np.eye(7)[batch.ids[:, 1:]]) * mask[..., None] / mask.sum()
    np.testing.assert_allclose(gradient, expected, atol=1e-7)


def test_nothing_to_train_on_is_zero_with_zero_gradient(tiny_model: MakeModel) -> None:
    batch = random_batch()._replace(mask=np.zeros((3, 21)))
    value, gradient = nnx.jit(nnx.value_and_grad(language_model_loss))(tiny_model(depth=1), batch)
    assert float(value) == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(nnx.to_pure_dict(gradient)))


def test_right_padding_changes_nothing(tiny_model: MakeModel) -> None:
    batch = random_batch()
    padded = Batch(
        np.pad(batch.ids, ((0, 0), (0, 9)), constant_values=299),
        np.pad(batch.mask, ((0, 0), (0, 9))),
        np.pad(batch.segments, ((0, 0), (0, 9)), constant_values=-1),
    )
    model = tiny_model()
    assert float(model_loss(model, padded)) == pytest.approx(float(model_loss(model, batch)), rel=1e-5)


def test_packing_changes_nothing(tiny_model: MakeModel) -> None:
    """Three documents of 21 tokens in rows of their own, or one behind the other in one row."""
    apart = random_batch()._replace(segments=np.zeros((3, 21), int))
    row = Batch(*(array.reshape(1, 63) for array in apart[:2]), np.repeat([[0, 1, 2]], 21, axis=1))
    # A document's first token has no predecessor, so its mask cannot count.
    assert float(target_mask(row).sum()) == float(target_mask(apart).sum())
    model = tiny_model()
    assert float(model_loss(model, row)) == pytest.approx(float(model_loss(model, apart)), rel=1e-5)


def test_the_order_of_rows_changes_nothing(tiny_model: MakeModel) -> None:
    batch, model = random_batch(), tiny_model()
    turned = Batch(*(array[::-1] for array in batch))
    assert float(model_loss(model, turned)) == pytest.approx(float(model_loss(model, batch)), rel=1e-6)


# --- preference loss


def preference(
    chosen: list[float],
    rejected: list[float],
    reference_chosen: list[float],
    reference_rejected: list[float],
    chosen_tokens: list[float] = CHOSEN_TOKENS,
    nll_weight: float = 0.0,
) -> Preference:
    sides = (chosen, rejected, reference_chosen, reference_rejected, chosen_tokens)
    return preference_loss(*(jnp.array(values, jnp.float32) for values in sides), 0.1, nll_weight)


def pair(index: int) -> list[list[float]]:
    return [[values[index]] for values in (CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED, CHOSEN_TOKENS)]


@pytest.mark.parametrize(
    ("index", "dpo", "rpo", "margin"), [(0, 0.632599, 1.215932, 0.125), (1, 0.683197, 2.183197, 0.02)]
)
def test_dpo_and_rpo_of_one_pair(index: int, dpo: float, rpo: float, margin: float) -> None:
    """float32 carries 1e-6 at values of this size."""
    assert float(preference(*pair(index)).loss) == pytest.approx(dpo, abs=1e-6)
    assert float(preference(*pair(index), nll_weight=1.0).loss) == pytest.approx(rpo, abs=1e-6)
    assert float(preference(*pair(index)).margin[0]) == pytest.approx(margin, abs=1e-6)


def test_the_loss_of_a_batch_is_the_mean_over_its_pairs() -> None:
    both = preference(CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED)
    assert float(both.loss) == pytest.approx(0.657898, abs=1e-6)
    np.testing.assert_allclose(both.margin, [0.125, 0.02], atol=1e-6)
    np.testing.assert_allclose(both.chosen_shift, [0.75, 0.0], atol=1e-6)


@pytest.mark.parametrize(("index", "expected"), [(0, 0.757599), (1, 0.703197)])
def test_swapping_the_sides_flips_the_sign_of_the_margin(index: int, expected: float) -> None:
    chosen, rejected, reference_chosen, reference_rejected, _ = pair(index)
    swapped = preference(rejected, chosen, reference_rejected, reference_chosen)
    assert float(swapped.loss) == pytest.approx(expected, abs=1e-6)
    assert float(swapped.margin[0]) == -float(preference(*pair(index)).margin[0])


@pytest.mark.parametrize(("index", "slope"), [(0, -0.046879), (1, -0.049500)])
def test_the_slope_of_dpo(index: int, slope: float) -> None:
    """d loss / d log-prob is -beta sigmoid(-margin) on the chosen side, its opposite on the rejected side."""
    arrays = [jnp.array(values) for values in pair(index)]
    slopes = jax.grad(lambda *sides: preference_loss(*sides, 0.1, 0.0).loss, argnums=(0, 1))(*arrays)
    assert float(slopes[0][0]) == pytest.approx(slope, abs=1e-6)
    assert float(slopes[1][0]) == -float(slopes[0][0])


def test_one_token_each_six_nats_apart() -> None:
    """Figures of another implementation: loss 0.437488, slope -0.035434."""
    value, slope = jax.value_and_grad(
        lambda lw: preference_loss(lw, jnp.array([-7.0]), jnp.zeros(1), jnp.zeros(1), jnp.ones(1), 0.1, 0.0).loss
    )(jnp.array([-1.0]))
    assert float(value) == pytest.approx(0.437488, abs=1e-6)
    assert float(slope[0]) == pytest.approx(-0.035434, abs=1e-6)


def test_policy_equal_to_the_reference_gives_ln_2_and_no_margin() -> None:
    result = preference(CHOSEN, REJECTED, CHOSEN, REJECTED)
    assert float(result.loss) == np.float32(np.log(2))
    assert result.margin.tolist() == [0.0, 0.0]
    assert result.chosen_shift.tolist() == [0.0, 0.0]


def test_an_identical_pair_gives_ln_2_and_exactly_no_gradient() -> None:
    reference = jnp.array(REFERENCE_CHOSEN)

    def loss(log_probs: jax.Array) -> jax.Array:
        return preference_loss(log_probs, log_probs, reference, reference, jnp.ones(2), 0.1, 0.0).loss

    value, gradient = jax.value_and_grad(loss)(jnp.array(CHOSEN))
    assert float(value) == np.float32(np.log(2))
    assert gradient.tolist() == [0.0, 0.0]


def test_the_nll_term_pulls_on_the_chosen_side_alone() -> None:
    def slope(argument: int, weight: float) -> np.ndarray:
        arrays = [jnp.array(values) for values in (CHOSEN, REJECTED, REFERENCE_CHOSEN, REFERENCE_REJECTED)]
        tokens = jnp.array(CHOSEN_TOKENS)
        return np.asarray(jax.grad(lambda *x: preference_loss(*x, tokens, 0.1, weight).loss, argument)(*arrays))

    np.testing.assert_allclose(slope(0, 1.0) - slope(0, 0.0), -0.5 / np.array(CHOSEN_TOKENS), atol=1e-7)
    np.testing.assert_array_equal(slope(1, 1.0), slope(1, 0.0))


def test_a_large_margin_of_either_sign_stays_finite() -> None:
    won, lost = (preference([sign * 1e4], [-sign * 1e4], [0.0], [0.0]) for sign in (1, -1))
    assert float(won.loss) == 0
    assert float(lost.loss) == pytest.approx(2_000)


def test_an_empty_chosen_reply_gives_no_nan() -> None:
    result = preference_loss(*(jnp.zeros(1),) * 5, 0.1, 1.0)
    assert float(result.loss) == np.float32(np.log(2))


def test_a_tool_result_moves_no_reward_but_by_what_follows_it(tiny_model: MakeModel) -> None:
    """Changing the ids of a masked last stretch changes nothing at all; of an earlier one, only later conditionals."""
    ids = np.random.default_rng(0).integers(0, 280, (1, 21))
    mask = np.array([[0] * 5 + [1] * 10 + [0] * 6])
    log_probs = nnx.jit(sequence_log_probs)
    model, changed = tiny_model(), ids.copy()
    changed[:, 15:] = (changed[:, 15:] + 11) % 280
    before, after = (log_probs(model, Batch(rows, mask, np.zeros_like(ids)))[0] for rows in (ids, changed))
    np.testing.assert_array_equal(before, after)
