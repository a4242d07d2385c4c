"""The agent's loop: the model answers, a tool runs, the model reads the result, until it makes no more calls.

The terminal, the evaluation and the generation of training data all run this loop, so a model is judged by, and
trained on, exactly what it meets when it is used. The conversation holds nothing but what the model said and what tools
returned: a stop is an event for the caller, never a message in the model's mouth or ear.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from nanocode.agent.tools import ToolResult
from nanocode.conversation import ConversationError, Message, ToolCall
from nanocode.inference.overflow import ContextOverflow

StopReason = Literal["finished", "max_turns", "repeated", "malformed", "context", "time"]


class Responder(Protocol):
    """A model, or anything that answers like one."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next assistant message. Raises ConversationError on malformed output, ContextOverflow on a long input."""


class Tools(Protocol):
    """What runs calls: a `Toolbox`, or a recording of one."""

    def execute(self, call: ToolCall) -> ToolResult: ...


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of one `Session.send`: assistant turns, identical calls with identical results in a row, seconds."""

    max_turns: int = 16
    max_repeats: int = 3
    wall_seconds: float = 600.0


@dataclass(frozen=True)
class AssistantText:
    """The model said something."""

    text: str


@dataclass(frozen=True)
class CallRequested:
    """The model asks for a tool; it has not run yet."""

    call: ToolCall


@dataclass(frozen=True)
class CallFinished:
    """A tool has run, or was refused."""

    call: ToolCall
    result: ToolResult


@dataclass(frozen=True)
class Stopped:
    """The loop has ended: ``finished`` is the model's own choice, everything else a bound. ``detail`` says more."""

    reason: StopReason
    detail: str = ""


Event = AssistantText | CallRequested | CallFinished | Stopped


@dataclass(frozen=True)
class Outcome:
    """A whole run: the conversation so far, this run's calls with their results, and why it stopped."""

    conversation: tuple[Message, ...]
    calls: tuple[CallFinished, ...]
    stop_reason: StopReason
    detail: str = ""


@dataclass
class Session:
    """A conversation with tools. ``system`` opens it; ``clock`` counts seconds."""

    responder: Responder
    toolbox: Tools
    limits: SessionLimits = field(default_factory=SessionLimits)
    system: str | None = None
    clock: Callable[[], float] = time.monotonic
    _messages: list[Message] = field(default_factory=list, init=False)
    _finished_length: int = field(default=0, init=False)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """Every message so far, an unfinished run's included."""
        return tuple(self._messages)

    def run(self, text: str) -> Outcome:
        """`send`, to the end."""
        calls = []
        stopped = Stopped("finished")
        for event in self.send(text):
            if isinstance(event, CallFinished):
                calls.append(event)
            elif isinstance(event, Stopped):
                stopped = event
        return Outcome(self.conversation, tuple(calls), stopped.reason, stopped.detail)

    def send(self, text: str) -> Iterator[Event]:
        """Say ``text`` to the model and yield what happens; the last event is `Stopped`.

        A run that did not finish leaves no trace in the next: the conversation goes on from the last finished answer,
        because after anything else the grammar of `nanocode.conversation` allows no user message.
        """
        del self._messages[self._finished_length :]
        if not self._messages and self.system is not None:
            self._messages.append(Message("system", self.system))
        self._messages.append(Message("user", text))
        yield from self._turns()

    def _turns(self) -> Iterator[Event]:
        deadline = self.clock() + self.limits.wall_seconds
        recent: list[CallFinished] = []
        for _ in range(self.limits.max_turns):
            if self.clock() >= deadline:
                yield Stopped("time", f"{self.limits.wall_seconds:g} seconds are over")
                return
            answer = self._answer()
            if isinstance(answer, Stopped):
                yield answer
                return
            self._messages.append(answer)
            if answer.content:
                yield AssistantText(answer.content)
            if answer.tool_call is None:
                self._finished_length = len(self._messages)
                yield Stopped("finished")
                return
            yield CallRequested(answer.tool_call)
            finished = CallFinished(answer.tool_call, self.toolbox.execute(answer.tool_call))
            self._messages.append(Message("tool_result", finished.result.text))
            yield finished
            recent = [*recent, finished][-self.limits.max_repeats :]
            if recent == [finished] * self.limits.max_repeats:
                yield Stopped("repeated", f"the same {finished.call.name} call {len(recent)} times in a row")
                return
        yield Stopped("max_turns", f"{self.limits.max_turns} turns are over")

    def _answer(self) -> Message | Stopped:
        try:
            answer = self.responder.respond(self.conversation)
        except ContextOverflow as error:
            return Stopped("context", str(error))
        except ConversationError as error:
            return Stopped("malformed", str(error))
        if answer.role != "assistant":
            raise ValueError(f"the responder returned a {answer.role} message instead of an assistant message")
        return answer
