"""The tools as a task lets an agent have them: under what its user agrees to, and with another hand in the files.

Training data, evaluation and the tokenizer's samples all take their tools from here, so that a refusal reads the same
in each of them, byte for byte, and as in a live session: it comes from the same policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nanocode.agent.policy import Policy
from nanocode.agent.results import ToolResult
from nanocode.agent.sandbox import Shell
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall
from nanocode.tasks.task import Consent, Task

_LOOKS = ("Read", "Grep")


@dataclass
class TaskTools:
    """A toolbox for one task, once. After the first look that succeeds, the task's `meanwhile` is written."""

    task: Task
    toolbox: Toolbox
    _written: bool = False

    def execute(self, call: ToolCall) -> ToolResult:
        """`Toolbox.execute`, and the other hand after it."""
        result = self.toolbox.execute(call)
        if result.ok and call.name in _LOOKS and not self._written:
            self._written = True
            for path, content in sorted(self.task.meanwhile.items()):
                (self.toolbox.workspace / path).write_bytes(content.encode())
        return result

    def refuse_malformed(self, salvaged: ToolCall, fault: str) -> ToolResult:
        """`Toolbox.refuse_malformed`."""
        return self.toolbox.refuse_malformed(salvaged, fault)


def tools_for(task: Task, workspace: Path, shell: Shell | None) -> TaskTools:
    """The tools over the prepared `workspace` of `task`; without a shell Bash is refused."""
    return TaskTools(task, Toolbox(workspace, policy_of(task.consent), shell))


def policy_of(consent: Consent) -> Policy:
    """The policy that a live session would have under the user's consent."""
    if consent == "all":
        return Policy("auto")
    if consent == "plan":
        return Policy("plan")
    if consent == "nobody":
        return Policy("ask")
    refused = "Edit" if consent == "no_edit" else "Bash"
    return Policy("ask", confirm=lambda call: call.name != refused)
