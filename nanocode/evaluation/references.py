"""What the expert does on a task: the calls that a model's own are held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from nanocode.agent.sandbox import Sandbox
from nanocode.agent.session import CallFinished
from nanocode.conversation import Message
from nanocode.evaluation.agent_tasks import work_on
from nanocode.tasks.registry import respond
from nanocode.tasks.task import Task, TaskError

Reference = tuple[CallFinished, ...]
_MAX_TURNS, _AT_ONCE = 16, 4


@dataclass(frozen=True)
class _Expert:
    """The teacher's expert as a responder; its words are of no concern here."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        return respond(conversation, "soul")


def references(tasks: Sequence[Task], sandbox: Sandbox | None = None) -> Mapping[str, Reference]:
    """By task id, the expert's calls and their results, from playing it with the real tools in a scratch workspace.

    Raises TaskError when the expert does not solve a task: then there is nothing to compare with.
    """
    shell = sandbox or Sandbox()

    def played(task: Task) -> Reference:
        episode = work_on(task, _Expert(), shell, _MAX_TURNS)
        if not episode.verdict.success:
            raise TaskError(f"the expert does not solve task {task.id}: {'; '.join(episode.verdict.reasons)}")
        return episode.made

    # Most of the time goes into waiting for commands in the sandbox.
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="expert") as pool:
        return dict(zip([task.id for task in tasks], pool.map(played, tasks), strict=True))
