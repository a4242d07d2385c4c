"""Asks before a call; only an explicit yes allows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from nanocode.agent.policy import Answer
from nanocode.agent.terminal_drawing import Screen
from nanocode.conversation import ToolCall

_YES: dict[str, Answer] = {"y": True, "yes": True, "a": "always", "always": "always"}


@dataclass
class Asker:
    """``ask`` puts a question and returns the answer; it raises EOFError or KeyboardInterrupt when there is none.

    Ctrl-C is a no that also ends the turn: `stopped` says so until the next turn begins.
    """

    ask: Callable[[str], str]
    screen: Screen
    stopped: bool = False

    def __call__(self, call: ToolCall) -> Answer:
        self.screen.view.quiet()
        answer = _YES.get(self._answer(call), False)
        if answer:
            self.screen.running(call)
        return answer

    def _reason(self, call: ToolCall) -> str:
        """Why a command is asked for in a mode that does not ask, or that a rule may forbid it; else nothing."""
        policy = self.screen.toolbox.policy
        rule = policy.decide(call).rule if call.name == "Bash" else ""
        return rule if rule != f"mode {policy.mode}" else ""

    def _answer(self, call: ToolCall) -> str:
        what = "this command" if call.name == "Bash" else call.name
        if reason := self._reason(call):
            self.screen.line(reason, "yellow")
        try:
            while True:
                choices = "y/N/always/show" if self.screen.left_out else "y/N/always"
                answer = self.ask(f"allow {what}? [{choices}] ").strip().casefold()
                if answer not in ("s", "show"):
                    return answer
                self.screen.call(call, whole=True)
        except EOFError:
            return ""
        except KeyboardInterrupt:
            self.stopped = True
            self.screen.line("")
            return ""
