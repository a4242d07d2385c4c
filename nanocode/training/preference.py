"""DPO around the one training loop: reference log-probs, the loss of a pair batch, the guard against displacement.

Likelihood displacement: the margin grows while the chosen reply itself becomes unlikely; accuracy reads 1.0 on a
destroyed model. The guard watches the chosen log-prob, which is the one figure that shows it during training.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from nanocode.model.gpt import GPT
from nanocode.training.guard import TrainingError
from nanocode.training.journal import Report
from nanocode.training.losses import Batch, preference_loss, sequence_log_probs
from nanocode.training.pairs import LogProbs, Pair, PairBatch, collate, row_tokens

_SCORE_PAIRS = 16
_GUARD_MEMORY = 0.8  # of the running mean of the chosen shift, per step


class GuardTripped(TrainingError):
    """The model is being damaged; what was trained is not kept."""


def score(model: GPT, pairs: Sequence[Pair], pad: int) -> dict[str, LogProbs]:
    """Summed log-probs of both sides of every pair under `model`, by pair id."""
    graph, state = nnx.split(model)
    context = model.shape.tokens
    ordered = sorted(pairs, key=lambda pair: (row_tokens(pair, context), pair.id))
    scores: dict[str, LogProbs] = {}
    for tokens in sorted({row_tokens(pair, context) for pair in pairs}):
        same = [pair for pair in ordered if row_tokens(pair, context) == tokens]
        for first in range(0, len(same), _SCORE_PAIRS):
            chunk = same[first : first + _SCORE_PAIRS]
            filled = chunk + [chunk[0]] * (_SCORE_PAIRS - len(chunk))  # one compiled shape
            values = _row_log_probs(graph, state, collate(filled, tokens, pad)).tolist()
            for position, pair in enumerate(chunk):
                scores[pair.id] = LogProbs(values[position], values[_SCORE_PAIRS + position])
    return scores


@partial(jax.jit, static_argnames="graph")
def _row_log_probs(graph: nnx.GraphDef, state: nnx.State, rows: Batch) -> jax.Array:
    return sequence_log_probs(nnx.merge(graph, state), rows)[0]


def pair_loss(beta: float, nll_weight: float) -> Callable[[GPT, PairBatch], tuple[jax.Array, dict[str, jax.Array]]]:
    """The loss of `nanocode.training.losses.preference_loss` over a batch, with what the log shows."""

    def loss(model: GPT, batch: PairBatch) -> tuple[jax.Array, dict[str, jax.Array]]:
        log_probs, tokens = sequence_log_probs(model, batch.rows)
        pairs = batch.reference_chosen.shape[0]
        result = preference_loss(
            log_probs[:pairs],
            log_probs[pairs:],
            batch.reference_chosen,
            batch.reference_rejected,
            tokens[:pairs],
            beta,
            nll_weight,
        )
        return result.loss, {
            "accuracy": jnp.mean(wins(result.margin)),
            "margin": jnp.mean(result.margin),
            "chosen_shift": jnp.mean(result.chosen_shift),
        }

    return loss


def wins(margin: jax.Array, tolerance: float = 1e-4) -> jax.Array:
    """1 where the chosen side is preferred, 0.5 for ties: at step 0 float noise would decide otherwise."""
    return jnp.where(jnp.abs(margin) <= tolerance, 0.5, (margin > 0).astype(jnp.float32))


class DisplacementGuard:
    """Raises GuardTripped when the running mean of the chosen log-prob falls `max_drop_nats` below the reference.

    The mean starts at the reference itself, so that one bad batch early on does not count as displacement.
    """

    def __init__(self, max_drop_nats: float) -> None:
        self._max_drop_nats = max_drop_nats
        self._mean = 0.0

    def begin(self, history: Iterable[Report]) -> None:
        self._mean = 0.0
        for report in history:
            self._add(report)

    def judge(self, report: Report) -> None:
        self._add(report)
        if self._mean < -self._max_drop_nats:
            raise GuardTripped(
                f"the chosen replies became {-self._mean:.1f} nats less likely by step {report.step} "
                f"(limit {self._max_drop_nats}): lower dpo.lr or raise dpo.nll_weight"
            )

    def _add(self, report: Report) -> None:
        self._mean = _GUARD_MEMORY * self._mean + (1 - _GUARD_MEMORY) * report.metrics["chosen_shift"]
