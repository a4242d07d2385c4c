"""Agent tasks: a model works on held-out tasks with the real tools, and the end state of the workspace decides.

`Summary` holds the rates that head a results table. A valid-call rate alone flatters, so success stands beside it; what
lies between the two is in `nanocode.evaluation.funnel`.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from nanocode.agent.context import ContextWindow
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.session import CallFinished, Responder, Session, SessionLimits
from nanocode.agent.tools import TOOLS
from nanocode.conversation import Message, ToolCall
from nanocode.evaluation.intervals import Rate
from nanocode.evaluation.lockstep import Seat, run_lockstep
from nanocode.inference.engine import Engine
from nanocode.tasks.situation import tools_for
from nanocode.tasks.task import Task, Verdict, check, prepare

Judge = Callable[[Task, Sequence[Message], Path], Verdict]


@dataclass(frozen=True)
class Episode:
    """One task, worked on once."""

    task: Task
    conversation: tuple[Message, ...]
    verdict: Verdict
    calls: int  # attempted, a malformed one included
    valid_calls: int
    stop_reason: str
    made: tuple[CallFinished, ...] = ()  # the calls that parsed, with their results
    cut_replies: int | None = None  # by the bound on new tokens; None where that cannot be seen


@dataclass(frozen=True)
class Summary:
    """Rates over a set of episodes.

    valid_calls: calls that parse, name a known tool and give it arguments it takes, of all attempted; a task that
    needs a tool and never calls one counts as one failed attempt, so that silence is not perfection.
    """

    success: Rate
    valid_calls: Rate
    called_when_needed: Rate
    finished: Rate
    by_family: dict[str, Rate]
    by_variant: dict[str, Rate]  # "known" and "held_out"
    stop_reasons: dict[str, int]

    def to_json(self) -> dict[str, Any]:
        return {
            "success": self.success.to_json(),
            "valid_calls": self.valid_calls.to_json(),
            "called_when_needed": self.called_when_needed.to_json(),
            "finished": self.finished.to_json(),
            "by_family": {name: rate.to_json() for name, rate in sorted(self.by_family.items())},
            "by_variant": {name: rate.to_json() for name, rate in sorted(self.by_variant.items())},
            "stop_reasons": dict(sorted(self.stop_reasons.items())),
        }


def run_tasks(
    engine: Engine,
    tasks: Sequence[Task],
    *,
    temperature: float,
    max_turns: int,
    max_new_tokens: int,
    seed: int,
    heard: Callable[[Episode], None] = lambda episode: None,
    max_malformed: int = 1,
    elide: bool = False,
    sample: int = 0,
    judge: Judge = check,
) -> list[Episode]:
    """One episode a task, in the order of `tasks`, each in its own scratch workspace; `heard` is told of each as it
    ends, on its own thread. Samples of one seed draw from random streams of their own.

    A malformed call ends an episode, and so does a conversation that grows too long: what a model has learned is
    measured here, not how well it is helped. `max_malformed` and `elide` give it the help that a user's session has.
    """
    sandbox = Sandbox()

    def run(index: int, seat: Seat) -> Episode:
        context = ContextWindow.of_model(engine.tokenizer, engine.context_tokens, max_new_tokens) if elide else None
        episode = work_on(tasks[index], seat, sandbox, max_turns, max_malformed, context, judge)
        episode = replace(episode, cut_replies=seat.cut)
        heard(episode)
        return episode

    return run_lockstep(
        engine,
        len(tasks),
        run,
        temperature=temperature,
        max_new_tokens=max_new_tokens,
        seed=seed,
        first_stream=sample * len(tasks),
    )


def work_on(
    task: Task,
    responder: Responder,
    sandbox: Sandbox,
    max_turns: int,
    max_malformed: int = 1,
    context: ContextWindow | None = None,
    judge: Judge = check,
) -> Episode:
    """One task, once, in a scratch workspace of its own. So many malformed replies in a row end it."""
    limits = SessionLimits(max_turns=max_turns, max_malformed=max_malformed)
    with tempfile.TemporaryDirectory(prefix="nanocode-task-") as scratch:
        workspace = Path(scratch)
        prepare(task, workspace)
        session = Session(responder, tools_for(task, workspace, sandbox), limits, context=context)
        outcome = session.run(task.prompt)
        verdict = judge(task, outcome.conversation, workspace)
    return Episode(
        task,
        outcome.conversation,
        verdict,
        calls=len(outcome.calls) + outcome.malformed,
        valid_calls=sum(is_valid(finished.call) for finished in outcome.calls),
        stop_reason=outcome.stop_reason,
        made=outcome.calls,
    )


def is_valid(call: ToolCall) -> bool:
    """Whether the call names a known tool and gives it all that it needs and nothing else."""
    spec = TOOLS.get(call.name)
    if spec is None:
        return False
    given = set(call.arguments)
    return given.issuperset(spec.required) and given.issubset({*spec.required, *spec.optional})


def summarise(episodes: Sequence[Episode]) -> Summary:
    """The rates of a set of episodes."""
    silent = [episode for episode in episodes if episode.task.expect.tools and not episode.calls]
    needing = [episode for episode in episodes if episode.task.expect.tools]
    return Summary(
        success=_rate(episodes, lambda episode: episode.verdict.success),
        valid_calls=Rate(
            sum(episode.valid_calls for episode in episodes),
            sum(episode.calls for episode in episodes) + len(silent),
        ),
        called_when_needed=_rate(needing, lambda episode: episode.verdict.called_when_needed),
        finished=_rate(episodes, lambda episode: episode.stop_reason == "finished"),
        by_family=_grouped(episodes, lambda episode: episode.task.family),
        by_variant=_grouped(episodes, lambda episode: "held_out" if episode.task.held_out_variant else "known"),
        stop_reasons=dict(Counter(episode.stop_reason for episode in episodes)),
    )


def _rate(episodes: Sequence[Episode], holds: Callable[[Episode], bool]) -> Rate:
    return Rate(sum(holds(episode) for episode in episodes), len(episodes))


def _grouped(episodes: Sequence[Episode], key: Callable[[Episode], str]) -> dict[str, Rate]:
    names = sorted({key(episode) for episode in episodes})
    return {
        name: _rate([e for e in episodes if key(e) == name], lambda episode: episode.verdict.success) for name in names
    }
