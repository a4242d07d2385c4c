"""What is written down of a rollout: rows of conversations and pairs with their provenance, and what was counted."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

from nanocode.constitution.gate import Decision
from nanocode.constitution.prompts import RULES_MODEL, template_digest
from nanocode.constitution.rollout import Given, Judgement, Rollout
from nanocode.constitution.rules import BEST_SCORE
from nanocode.constitution.soul import Soul
from nanocode.conversation import Conversation, to_json
from nanocode.tasks.task import Register


def conversation_row(outcome: Rollout, register: Register, conversation: Conversation, soul: Soul) -> dict[str, Any]:
    """One training conversation as plain JSON values."""
    return {
        "id": f"{outcome.task.id}/{register}",
        "family": outcome.task.family,
        "variant": outcome.task.variant,
        "register": register,
        "messages": to_json(conversation),
        "provenance": _provenance(outcome, soul),
    }


def pair_row(outcome: Rollout, accepted: Conversation, decision: Decision, soul: Soul) -> dict[str, Any]:
    """One preference pair as plain JSON values; the rejected side is the draft."""
    return {
        "id": f"{outcome.task.id}/pair",
        "task": outcome.task.id,
        "family": outcome.task.family,
        "variant": outcome.task.variant,
        "chosen": {"messages": to_json(accepted), "trained_tokens": decision.chosen_tokens},
        "rejected": {"messages": to_json(outcome.draft), "trained_tokens": decision.rejected_tokens},
        "provenance": _provenance(outcome, soul),
    }


def _provenance(outcome: Rollout, soul: Soul) -> dict[str, Any]:
    models = dict(outcome.models)
    given = dict(outcome.task.provenance) if isinstance(outcome.task, Given) else {}
    return given | {
        "task": outcome.task.id,
        "models": models,
        "taught_by": taught_by(models),
        "template": template_digest(),
        "soul": soul.digest,
        "critiques": [_critique_row(judgement) for judgement in outcome.judgements],
        "ledger_keys": list(outcome.keys),
    }


def taught_by(models: dict[str, str]) -> Literal["rules", "endpoint"]:
    """``rules`` only if every part was played by the embedded teacher."""
    return "rules" if set(models.values()) == {RULES_MODEL} else "endpoint"


def _critique_row(judgement: Judgement) -> dict[str, Any]:
    return {"score": judgement.score, "rule_score": judgement.rule_score, "violations": list(judgement.violations)}


class Counts:
    """What became of the tasks, by reason. ``gate`` is for the caller to count in."""

    def __init__(self) -> None:
        self.gate: Counter[str] = Counter()
        self._tasks = 0
        self._refused_revisions = 0
        self._dropped: Counter[str] = Counter()
        self._families: Counter[str] = Counter()
        self._revisions: Counter[str] = Counter()
        self._scored = self._agreeing = 0

    def add_refused(self) -> None:
        """A task that an endpoint refused for good."""
        self._tasks += 1
        self._dropped["the endpoint refused a request"] += 1

    def add(self, outcome: Rollout) -> None:
        """A task that came to an end, whichever."""
        self._tasks += 1
        self._refused_revisions += outcome.refused_revisions
        for seen in outcome.judgements:
            self._scored += seen.score is not None
            self._agreeing += seen.score is not None and (seen.score == BEST_SCORE) == (seen.rule_score == BEST_SCORE)
        if outcome.accepted is None:
            self._dropped[f"{outcome.task.family}: {outcome.dropped}"] += 1
        else:
            self._families[outcome.task.family] += 1
            self._revisions[str(len(outcome.judgements) - 1)] += 1

    def metrics(self) -> dict[str, Any]:
        """Plain JSON values. ``critic_agreement``: share of scored judgements in which both critics say the same."""
        return {
            "tasks": self._tasks,
            "kept": self._families.total(),
            "families": dict(self._families),
            "dropped": dict(self._dropped),
            "revisions": dict(self._revisions),
            "refused_revisions": self._refused_revisions,
            "gate": dict(self.gate),
            "critic_agreement": self._agreeing / self._scored if self._scored else None,
        }
