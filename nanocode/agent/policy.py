"""One policy for all four tools: what runs at once, what is asked for, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

from nanocode.agent.protected import is_protected
from nanocode.conversation import ToolCall

Mode = Literal["plan", "ask", "auto-edit", "auto"]
Verdict = Literal["allow", "ask", "deny"]
MODES: tuple[Mode, ...] = get_args(Mode)

# Bash in plan mode is allowed because it sees a read-only workspace.
TABLE: dict[Mode, dict[str, Verdict]] = {
    "plan": {"Read": "allow", "Grep": "allow", "Edit": "deny", "Bash": "allow"},
    "ask": {"Read": "allow", "Grep": "allow", "Edit": "ask", "Bash": "ask"},
    "auto-edit": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "ask"},
    "auto": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "allow"},
}


def deny_all(call: ToolCall) -> bool:
    """The answer where nobody can be asked."""
    return False


@dataclass(frozen=True)
class Decision:
    """A verdict and the rule that gave it, in words."""

    verdict: Verdict
    rule: str


@dataclass(frozen=True)
class Policy:
    """``confirm`` is asked in modes that ask; the default stands for a missing terminal and says no."""

    mode: Mode = "ask"
    confirm: Callable[[ToolCall], bool] = deny_all

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"unknown mode {self.mode!r}: choose one of {', '.join(MODES)}")

    @property
    def writable(self) -> bool:
        """Whether commands may write to the workspace at all."""
        return self.mode != "plan"

    def decide(self, call: ToolCall, path: str | None = None) -> Decision:
        """The verdict on ``call``; ``path`` is the file it touches, relative to the workspace and normalised."""
        if call.name == "Edit" and path is not None and is_protected(path):
            return Decision("deny", f"{path} is protected")
        verdict = TABLE[self.mode].get(call.name, "deny")
        return Decision(verdict, f"mode {self.mode}")
