"""The micro-SWE suite for one contestant: how many bugs it fixes, of which kinds, and how far it comes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.agent_tasks import Episode, summarise
from nanocode.evaluation.contestants import Contestant, Heard, Questions, all_rounds
from nanocode.evaluation.funnel import funnel
from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.micro_swe.generation import micro_swe_tasks
from nanocode.evaluation.micro_swe.grading import TestsPass, is_test
from nanocode.evaluation.repeated import outcomes

# A look at the test and at the code, a fix, a run of the test: turns for that, and for one more try.
MICRO_SWE_TURNS = 12


def micro_swe_figures(contestant: Contestant, questions: Questions, heard: Heard) -> dict[str, Any]:
    """By decoding: solved, by kind of bug, and how far it came. No expert knows a reference here."""
    config = questions.config.model_copy(update={"max_turns": max(questions.config.max_turns, MICRO_SWE_TURNS)})
    asked = replace(questions, config=config)
    tasks = micro_swe_tasks(config.tasks, config.seed)
    judge = TestsPass(Sandbox())
    found: dict[str, Any] = {}
    for decoding in questions.decodings:
        rounds = all_rounds(contestant, tasks, asked, decoding, heard, judge)
        summary = summarise(rounds[0])
        found[decoding] = {
            "temperature": questions.temperature(decoding),
            "success": summary.success.to_json(),
            "by_bug": {kind: rate.to_json() for kind, rate in _by_bug(rounds[0]).items()},
            "edited_the_right_file": Rate(sum(_edited_right_file(each) for each in rounds[0]), len(tasks)).to_json(),
            "edited_a_test": Rate(sum(_edited_test(each) for each in rounds[0]), len(tasks)).to_json(),
            "funnel": funnel(rounds[0], None).to_json(),
            "stop_reasons": summary.to_json()["stop_reasons"],
            **outcomes(rounds),
        }
    return found


def _by_bug(episodes: Sequence[Episode]) -> dict[str, Rate]:
    kinds = sorted({each.task.variant for each in episodes})
    of_kind = {kind: [each.verdict.success for each in episodes if each.task.variant == kind] for kind in kinds}
    return {kind: Rate(sum(solved), len(solved)) for kind, solved in of_kind.items()}


def _edited(episode: Episode) -> set[str]:
    """Files that a successful Edit changed."""
    edits = [each.call for each in episode.made if each.call.name == "Edit" and each.result.ok]
    return {PurePosixPath(call.arguments["file_path"]).as_posix() for call in edits}


def _edited_right_file(episode: Episode) -> bool:
    """Whether an Edit changed the file that holds the bug."""
    task = episode.task
    return any(task.files.get(path) != task.expect.files.get(path) for path in _edited(episode) & set(task.files))


def _edited_test(episode: Episode) -> bool:
    return any(is_test(path) for path in _edited(episode))
