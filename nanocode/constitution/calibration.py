"""The calibration gate: a model critic has to tell good probes from bad ones before its scores count.

A judge that finds everything excellent, or answers at random, looks like a working pipeline until the trained model is
looked at. Measured is the area under the ROC curve: the chance that a bad probe scores below a good one, ties counting
half (Hanley and McNeil, 1982): 1 is perfect, 0.5 is no judgement at all. A reply that cannot be read counts against the
critic, as the worst score for a good probe and the best for a bad one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nanocode.constitution.faults import EndpointError
from nanocode.constitution.probes import PROBES, Probe
from nanocode.constitution.rules import BEST_SCORE, WORST_SCORE
from nanocode.conversation import Conversation

Score = Callable[[Conversation, str], Awaitable[int | None]]


class CalibrationError(EndpointError):
    """A critic whose scores mean nothing. The message shows every probe with its score."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=False, fatal=True)


@dataclass(frozen=True)
class Calibration:
    """Scores by probe, in the order of the probes; None: unread."""

    probes: tuple[Probe, ...]
    scores: tuple[int | None, ...]

    @property
    def auc(self) -> float:
        """Over all pairs of a good and a bad probe."""
        values: dict[bool, list[int]] = {True: [], False: []}
        for probe, score in zip(self.probes, self.scores, strict=True):
            unread = WORST_SCORE - 1 if probe.good else BEST_SCORE + 1
            values[probe.good].append(unread if score is None else score)
        return area_under_curve(values[True], values[False])

    def table(self) -> str:
        """The scores, by principle, in one line."""
        shown: dict[str, list[str]] = {}
        for probe, score in zip(self.probes, self.scores, strict=True):
            said = "unread" if score is None else str(score)
            shown.setdefault(probe.principle, []).append(f"{'good' if probe.good else 'bad'} {said}")
        return "; ".join(f"{principle}: {', '.join(scores)}" for principle, scores in shown.items())

    def to_json(self) -> dict[str, Any]:
        """The area and each probe with its last words and its score."""
        probes = [
            {
                "principle": probe.principle,
                "good": probe.good,
                "reply": probe.conversation[-1].content,
                "score": score,
            }
            for probe, score in zip(self.probes, self.scores, strict=True)
        ]
        return {"auc": self.auc, "probes": probes}


def area_under_curve(good: Sequence[int], bad: Sequence[int]) -> float:
    """The chance that one of `bad` is below one of `good`, ties counting half. Both must hold something."""
    won = sum((high > low) + 0.5 * (high == low) for high in good for low in bad)
    return won / (len(good) * len(bad))


async def calibrate(critic: str, score: Score, least_auc: float, principles: Sequence[str]) -> Calibration:
    """Have `score` judge (conversation, sample name) of every probe for one of `principles`.

    `critic` names it in messages. Raises CalibrationError below `least_auc`, and what `score` raises.
    """
    probes = tuple(probe for probe in PROBES if probe.principle in principles)
    if not probes:
        raise CalibrationError(
            f"there is no probe for any of the principles {', '.join(principles)}: keep one of ours, or set "
            "constitution.calibration_auc to 0"
        )
    samples = [f"calibration/{index}" for index in range(len(probes))]
    # All are waited for, whatever one of them says: an answer that is under way is paid for.
    replies = await asyncio.gather(
        *(score(probe.conversation, sample) for probe, sample in zip(probes, samples, strict=True)),
        return_exceptions=True,
    )
    scores: list[int | None] = []
    for reply in replies:
        if isinstance(reply, BaseException):
            raise reply
        scores.append(reply)
    found = Calibration(probes, tuple(scores))
    if found.auc < least_auc:
        raise CalibrationError(
            f"the critic {critic} cannot tell good replies from bad ones: area under the curve {found.auc:.2f}, and "
            f"constitution.calibration_auc asks for {least_auc:g}; its scores of 5 (unread: no score in two replies): "
            f"{found.table()}; take a stronger critic model"
        )
    return found
