"""One policy for all four tools: what runs at once, what is asked for, what is refused, and by which rule.

In this order: protected paths, the user's deny rules, what the mode refuses, what the mode allows, the user's allow
rules, what the user has allowed for good in this session, the user himself, and where there is nobody to ask, no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, get_args

from nanocode.agent.command_rules import judge
from nanocode.agent.protected import is_protected
from nanocode.agent.rules import Rules
from nanocode.conversation import ToolCall

Mode = Literal["plan", "ask", "auto-edit", "auto"]
Verdict = Literal["allow", "ask", "deny"]
Answer = bool | Literal["always"]
MODES: tuple[Mode, ...] = get_args(Mode)
USER_SAID_NO = "the user said no"

# Bash in plan mode is allowed because it sees a read-only workspace.
TABLE: dict[Mode, dict[str, Verdict]] = {
    "plan": {"Read": "allow", "Grep": "allow", "Edit": "deny", "Bash": "allow"},
    "ask": {"Read": "allow", "Grep": "allow", "Edit": "ask", "Bash": "ask"},
    "auto-edit": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "ask"},
    "auto": {"Read": "allow", "Grep": "allow", "Edit": "allow", "Bash": "allow"},
}


def deny_all(call: ToolCall) -> Answer:
    """The answer where nobody can be asked."""
    return False


@dataclass(frozen=True)
class Decision:
    """A verdict and the rule that gave it, in words."""

    verdict: Verdict
    rule: str


@dataclass
class Approvals:
    """What the user has allowed for good, until the session ends: a tool, or for Bash one exact command."""

    _given: set[tuple[str, str]] = field(default_factory=set, init=False)

    def remember(self, call: ToolCall) -> None:
        """Do not ask for this again."""
        self._given.add(_kind(call))

    def cover(self, call: ToolCall) -> bool:
        """Whether the like of it was allowed for good."""
        return _kind(call) in self._given

    def forget(self) -> None:
        """Ask for everything again."""
        self._given.clear()


@dataclass(frozen=True)
class Policy:
    """``confirm`` is asked in modes that ask (True, False or ``"always"``); the default stands for a missing terminal
    and says no. ``rules`` are the user's own, never the workspace's.
    """

    mode: Mode = "ask"
    confirm: Callable[[ToolCall], Answer] = deny_all
    rules: Rules = field(default_factory=Rules)
    approvals: Approvals = field(default_factory=Approvals, compare=False)

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
        if path is not None and (pattern := self.rules.denying(path)) is not None:
            return Decision("deny", f"the user's deny rule {pattern!r}")
        verdict, rule = TABLE[self.mode].get(call.name, "deny"), f"mode {self.mode}"
        if call.name == "Bash":
            judged = judge(call.arguments.get("command", ""), self.rules.deny_commands)
            if judged is not None and judged.verdict == "deny":
                return Decision("deny", f"the user's deny rule 'Bash({judged.why})'")
            if verdict == "allow" and judged is not None:
                verdict, rule = "ask", f"{rule}, and whether deny rules forbid the command is not certain: {judged.why}"
            elif verdict == "allow" and self.rules.deny:
                verdict, rule = "ask", f"{rule}, and deny rules for paths cannot bind commands"
        if verdict == "ask" and (pattern := self.rules.allowing(call, path)) is not None:
            return Decision("allow", f"the user's allow rule {pattern!r}")
        if verdict == "ask" and self.approvals.cover(call):
            return Decision("allow", f"the user allowed it for good ({rule})")
        return Decision(verdict, rule)

    def settle(self, call: ToolCall, path: str | None = None) -> Decision:
        """`decide`, the user asked where that is the verdict: allow or deny."""
        decision = self.decide(call, path)
        if decision.verdict != "ask":
            return decision
        if self.confirm is deny_all:
            return Decision("deny", f"nobody to ask ({decision.rule})")
        answer = self.confirm(call)
        if answer == "always":
            self.approvals.remember(call)
        return Decision("allow", f"the user said yes ({decision.rule})") if answer else Decision("deny", USER_SAID_NO)


def _kind(call: ToolCall) -> tuple[str, str]:
    return call.name, call.arguments.get("command", "") if call.name == "Bash" else ""


def refusal(decision: Decision) -> str:
    """What the model reads of a call that was denied."""
    return decision.rule if decision.rule == USER_SAID_NO else f"not allowed: {decision.rule}"
