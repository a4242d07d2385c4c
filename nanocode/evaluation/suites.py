"""The suites of held-out tasks for one contestant, in the form in which the evaluation stage writes its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from nanocode.evaluation.adherence import episode_adherence
from nanocode.evaluation.agent_tasks import Episode, summarise
from nanocode.evaluation.contestants import Contestant, Heard, Questions, all_rounds
from nanocode.evaluation.funnel import funnel
from nanocode.evaluation.micro_swe.suite import micro_swe_figures
from nanocode.evaluation.references import Reference, references
from nanocode.evaluation.repeated import outcomes
from nanocode.tasks.registry import sample_tasks


def agent_figures(contestant: Contestant, questions: Questions, heard: Heard) -> dict[str, Any]:
    """By decoding, what the evaluation stage records: rates with n and interval, the funnel, adherence to the SOUL.

    Besides, which tasks were solved (``solved``), for comparing two models task by task, and with several samples what
    they are worth (``samples``). Under ``micro_swe``, by decoding again, the figures of that suite.
    """
    found: dict[str, Any] = {}
    if questions.suites & {"agent", "soul"}:
        tasks = sample_tasks("eval", questions.config.tasks, questions.config.seed)
        expert = references(tasks) if "agent" in questions.suites else None
        for decoding in questions.decodings:
            rounds = all_rounds(contestant, tasks, questions, decoding, heard)
            found[decoding] = _family_figures(rounds[0], questions, expert) | outcomes(rounds)
            found[decoding]["temperature"] = questions.temperature(decoding)
    if "micro-swe" in questions.suites:
        found["micro_swe"] = micro_swe_figures(contestant, questions, heard)
    return found


def _family_figures(
    episodes: Sequence[Episode], questions: Questions, expert: Mapping[str, Reference] | None
) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    if expert is not None:
        figures |= summarise(episodes).to_json() | {"funnel": funnel(episodes, expert).to_json()}
    if "soul" in questions.suites:
        adherence, broken = episode_adherence(episodes, questions.soul)
        figures |= {"soul": adherence.to_json(), "principles_broken": broken}
    return figures
