"""The funnel from a first call to a solved task: where episodes are lost on the way.

A call is attempted, parses, names a known tool, gives it arguments that it takes, is the right one of the tools, has
the right arguments, and runs without an error; the end state says whether the task is solved. The stages are counted
twice: over all calls that were attempted, and over the tasks that need a tool.

Right is judged against the expert's calls on the same task (`nanocode.evaluation.references`), in order, other calls
between them allowed. A tool is also right where the task itself accepts it in the expert's stead (``Read|Grep``);
arguments are right when all of them equal the expert's, byte for byte. A task can be solved in another way, by an edit
with more context for example: it then counts as solved without right arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from nanocode.agent.session import CallFinished
from nanocode.agent.tools import TOOLS
from nanocode.evaluation.agent_tasks import Episode, is_valid
from nanocode.evaluation.intervals import Rate, SampleMean
from nanocode.evaluation.references import Reference
from nanocode.tasks.task import Task

STAGES = ("attempted", "parsed", "known_tool", "valid_arguments", "right_tool", "right_arguments", "executed")
_OVERRUNS = frozenset({"max_turns", "context", "time", "length"})


@dataclass(frozen=True)
class Passage:
    """Of one episode's calls, how many passed each stage; `needed` counts the expert's, None where there is none."""

    attempted: int
    parsed: int
    known_tool: int
    valid_arguments: int
    right_tool: int | None
    right_arguments: int | None
    executed: int
    needed: int | None
    repeated: int  # the same call with the same result as the one right before it
    turns: int

    def reached(self, stage: str) -> bool:
        """Whether the whole episode passed: all its calls did; of those that are right, all that the expert makes."""
        if stage in ("right_tool", "right_arguments"):
            return self.attempted > 0 and getattr(self, stage) == self.needed
        return self.attempted > 0 and getattr(self, stage) == self.attempted

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class Funnel:
    """`tasks` and `calls` map each stage to its rate; ``solved`` is a stage of tasks alone.

    overruns: episodes that a bound on turns, context, time or a reply's length ended. cut_replies: those in which a
    reply was cut by the bound on new tokens, a call too; None where that cannot be seen. called_needlessly: of the
    tasks that need no tool, those with a call all the same; never_called: of the tasks that need one, those without.
    """

    tasks: dict[str, Rate]
    calls: dict[str, Rate]
    calls_a_task: SampleMean
    turns_a_task: SampleMean
    overruns: Rate
    cut_replies: Rate | None
    repeated_calls: Rate
    called_needlessly: Rate
    never_called: Rate

    def to_json(self) -> dict[str, Any]:
        return {
            "tasks": {name: rate.to_json() for name, rate in self.tasks.items()},
            "calls": {name: rate.to_json() for name, rate in self.calls.items()},
            "calls_a_task": self.calls_a_task.to_json(),
            "turns_a_task": self.turns_a_task.to_json(),
            "overruns": self.overruns.to_json(),
            "cut_replies": None if self.cut_replies is None else self.cut_replies.to_json(),
            "repeated_calls": self.repeated_calls.to_json(),
            "called_needlessly": self.called_needlessly.to_json(),
            "never_called": self.never_called.to_json(),
        }


def passage(episode: Episode, reference: Reference | None) -> Passage:
    """How far the calls of one episode came; without a reference nothing is said about right ones."""
    made = [finished.call for finished in episode.made]
    expected = [finished.call for finished in reference or ()]
    valid = [call for call in made if is_valid(call)]
    alike = _interchangeable(episode.task)
    failing = [finished.call for finished in reference or () if not _ran(finished)]
    assistant_turns = sum(message.role == "assistant" for message in episode.conversation)
    return Passage(
        attempted=episode.calls,
        parsed=len(made),
        known_tool=sum(call.name in TOOLS for call in made),
        valid_arguments=len(valid),
        right_tool=None
        if reference is None
        else _in_order(valid, expected, lambda call, wanted: alike(call.name, wanted.name)),
        right_arguments=None if reference is None else _in_order(valid, expected, lambda call, wanted: call == wanted),
        # Where the expert's own call meets an error (a file that is not there), the same call is no failure.
        executed=sum(_ran(finished) or finished.call in failing for finished in episode.made),
        needed=None if reference is None else len(expected),
        repeated=sum(first == second for first, second in pairwise(episode.made)),
        turns=assistant_turns + (episode.stop_reason == "malformed"),
    )


def funnel(episodes: Sequence[Episode], references: Mapping[str, Reference] | None) -> Funnel:
    """Over a set of episodes; `references` by task id, None for tasks that no expert solves."""
    passages = [passage(each, None if references is None else references[each.task.id]) for each in episodes]
    both = list(zip(episodes, passages, strict=True))
    needing = [(episode, passed) for episode, passed in both if episode.task.expect.tools]
    needless = [passed for episode, passed in both if not episode.task.expect.tools]
    stages = [stage for stage in STAGES if references is not None or not stage.startswith("right_")]
    attempted = sum(passed.attempted for passed in passages)
    tasks = {stage: Rate(sum(passed.reached(stage) for _, passed in needing), len(needing)) for stage in stages}
    tasks["solved"] = Rate(sum(episode.verdict.success for episode, _ in needing), len(needing))
    return Funnel(
        tasks=tasks,
        calls={stage: Rate(sum(getattr(each, stage) for each in passages), attempted) for stage in stages[1:]},
        calls_a_task=SampleMean.of([passed.attempted for passed in passages]),
        turns_a_task=SampleMean.of([passed.turns for passed in passages]),
        overruns=Rate(sum(episode.stop_reason in _OVERRUNS for episode in episodes), len(episodes)),
        cut_replies=_cut(episodes),
        repeated_calls=Rate(sum(passed.repeated for passed in passages), attempted),
        called_needlessly=Rate(sum(passed.attempted > 0 for passed in needless), len(needless)),
        never_called=Rate(sum(passed.attempted == 0 for _, passed in needing), len(needing)),
    )


def _ran(finished: CallFinished) -> bool:
    """Whether the tool did its work: a command that ran did, whatever its exit code."""
    return finished.result.ok or finished.result.exit_code is not None


def _cut(episodes: Sequence[Episode]) -> Rate | None:
    counts = [episode.cut_replies for episode in episodes if episode.cut_replies is not None]
    return Rate(sum(count > 0 for count in counts), len(counts)) if len(counts) == len(episodes) else None


def _interchangeable(task: Task) -> Callable[[str, str], bool]:
    """Whether one tool may stand for another in this task."""
    needs = [set(need.split("|")) for need in task.expect.tools]
    return lambda name, other: name == other or any({name, other} <= need for need in needs)


def _in_order(calls: Sequence[Any], wanted: Sequence[Any], match: Callable[[Any, Any], bool]) -> int:
    """The most of `wanted` that `calls` hold in the same order: the longest common subsequence under `match`."""
    row = [0] * (len(wanted) + 1)
    for call in calls:
        above = row
        row = [0]
        for column, want in enumerate(wanted):
            row.append(above[column] + 1 if match(call, want) else max(above[column + 1], row[column]))
    return row[-1]
