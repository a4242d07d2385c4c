"""Episodes played with the real tools: the expert, or a variation of it, in a scratch workspace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox, SandboxUnavailable, Shell, UnsafeShell
from nanocode.agent.session import Session
from nanocode.agent.tools import Toolbox
from nanocode.conversation import Message
from nanocode.tasks.registry import respond
from nanocode.tasks.situation import tools_for
from nanocode.tasks.task import Register, Task, Verdict, check, prepare


@dataclass(frozen=True)
class Expert:
    register: Register
    choice: int

    def respond(self, conversation: Sequence[Message]) -> Message:
        return respond(conversation, self.register, self.choice)


@dataclass(frozen=True)
class Episode:
    task: Task
    conversation: tuple[Message, ...]
    workspace: Path

    @property
    def verdict(self) -> Verdict:
        return check(self.task, self.conversation, self.workspace)

    @property
    def answer(self) -> str:
        return self.conversation[-1].content

    @property
    def characters(self) -> int:
        """Of everything that a rendering holds, tool calls included."""
        calls = [message.tool_call for message in self.conversation if message.tool_call]
        values = [text for call in calls for text in (call.name, *call.arguments, *call.arguments.values())]
        return sum(map(len, values)) + sum(len(message.content) for message in self.conversation)


@pytest.fixture(scope="session")
def shell() -> Shell:
    """The sandbox, or, where this machine has none, a bare shell: the commands are our own."""
    try:
        sandbox = Sandbox()
        sandbox.check()
    except SandboxUnavailable:
        return UnsafeShell()
    return sandbox


Play = Callable[..., Episode]


@pytest.fixture
def play(tmp_path: Path, shell: Shell) -> Play:
    """`play(task, register, choice, policy)` lets the expert solve a task and returns the episode."""
    count = 0

    def run(task: Task, register: Register = "soul", choice: int = 0, policy: Policy | None = None) -> Episode:
        nonlocal count
        count += 1
        workspace = tmp_path / f"episode-{count}"
        prepare(task, workspace)
        tools = tools_for(task, workspace, shell) if policy is None else Toolbox(workspace, policy, shell)
        outcome = Session(Expert(register, choice), tools).run(task.prompt)
        assert outcome.stop_reason == "finished", outcome.detail
        return Episode(task, outcome.conversation, workspace)

    return run
