"""The agent's loop: the model answers, a tool runs, the model reads the result, until it makes no more calls.

The terminal, the evaluation and the generation of training data all run this loop, so a model is judged by, and
trained on, exactly what it meets when it is used. The conversation holds nothing but what the model said and what tools
returned: a stop is an event for the caller, never a message in the model's mouth or ear. A malformed call is answered
as a wrong one is, by a tool error; in the conversation stands what could be salvaged of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from nanocode.agent.context import ContextWindow
from nanocode.agent.results import ToolResult, malformed_result, valid_text
from nanocode.conversation import ConversationError, MalformedReply, Message, ToolCall
from nanocode.inference.cut import CutReply
from nanocode.inference.overflow import ContextOverflow

StopReason = Literal["finished", "length", "max_turns", "repeated", "malformed", "context", "time"]


class Responder(Protocol):
    """A model, or anything that answers like one."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next assistant message, a CutReply where a bound ended it before the model did.

        Raises MalformedReply on malformed output, ContextOverflow on a long input.
        """


@runtime_checkable
class StreamingResponder(Protocol):
    """A responder that can be heard while it speaks."""

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        """Pieces of the assistant's text as they come, then the whole message. Raises as `Responder.respond` does."""


class Tools(Protocol):
    """What runs calls: a `Toolbox`, or a recording of one."""

    def execute(self, call: ToolCall) -> ToolResult: ...


@runtime_checkable
class ToolsWithRecord(Protocol):
    """Tools that also write down a call that came as something else than one."""

    def refuse_malformed(self, salvaged: ToolCall, fault: str) -> ToolResult:
        """`malformed_result`, recorded."""


@dataclass(frozen=True)
class SessionLimits:
    """Bounds of one `Session.send`: assistant turns, identical calls with identical results in a row, malformed replies
    in a row (1: the first ends the run), seconds.
    """

    max_turns: int = 16
    max_repeats: int = 3
    max_malformed: int = 3
    wall_seconds: float = 600.0


@dataclass(frozen=True)
class TextDelta:
    """The model is speaking: the next piece of the `AssistantText` that follows. Only from a `StreamingResponder`."""

    text: str


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
class Malformed:
    """The model's reply was no message; ``detail`` is its fault. The model is told, or the run ends."""

    detail: str


@dataclass(frozen=True)
class Elided:
    """The conversation grew too long: from now on the model no longer sees so many more old tool results (a marker
    stands in their place), nor so many more of the oldest exchanges.
    """

    results: int
    exchanges: int = 0


@dataclass(frozen=True)
class Stopped:
    """The loop has ended: ``finished`` is the model's own choice, everything else a bound. ``detail`` says more.

    ``length`` is a reply that was cut: as far as it goes it is said and stays in the conversation.
    """

    reason: StopReason
    detail: str = ""


Event = TextDelta | AssistantText | CallRequested | CallFinished | Malformed | Elided | Stopped


@dataclass(frozen=True)
class Outcome:
    """A whole run: the conversation so far, this run's calls with their results, why it stopped, and how many of its
    replies were malformed.
    """

    conversation: tuple[Message, ...]
    calls: tuple[CallFinished, ...]
    stop_reason: StopReason
    detail: str = ""
    malformed: int = 0


@dataclass
class Session:
    """A conversation with tools. ``system`` opens it; ``clock`` counts seconds.

    ``context`` decides what the model sees of a long conversation; without one it sees everything, and the responder
    says when that is too much.
    """

    responder: Responder
    toolbox: Tools
    limits: SessionLimits = field(default_factory=SessionLimits)
    system: str | None = None
    clock: Callable[[], float] = time.monotonic
    context: ContextWindow | None = None
    _messages: list[Message] = field(default_factory=list, init=False)
    _finished_length: int = field(default=0, init=False)

    @property
    def conversation(self) -> tuple[Message, ...]:
        """Every message so far in full, an unfinished run's included, whatever the model still sees of it."""
        return tuple(self._messages)

    @property
    def seen(self) -> tuple[Message, ...]:
        """What the model sees of `conversation`, as its context has shown it last."""
        return self._as_seen(self._messages)

    @property
    def remembered(self) -> tuple[Message, ...]:
        """What the model will see before the next user message: of an unfinished run nothing."""
        return self._as_seen(self._messages[: self._finished_length])

    def _as_seen(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        return tuple(messages) if self.context is None else self.context.shown(messages)

    def run(self, text: str) -> Outcome:
        """`send`, to the end."""
        calls, malformed = [], 0
        stopped = Stopped("finished")
        for event in self.send(text):
            if isinstance(event, CallFinished):
                calls.append(event)
            elif isinstance(event, Malformed):
                malformed += 1
            elif isinstance(event, Stopped):
                stopped = event
        return Outcome(self.conversation, tuple(calls), stopped.reason, stopped.detail, malformed)

    def send(self, text: str) -> Iterator[Event]:
        """Say ``text`` to the model and yield what happens; the last event is `Stopped`.

        A run that came to no answer leaves no trace in the next: the conversation goes on from the last answer, whole
        or cut, because after anything else the grammar of `nanocode.conversation` allows no user message.
        """
        del self._messages[self._finished_length :]
        if self.context is not None:
            self.context.rewind(self._messages)
        if not self._messages and self.system is not None:
            self._messages.append(Message("system", self.system))
        self._messages.append(Message("user", valid_text(text)))
        yield from self._turns()

    def _turns(self) -> Iterator[Event]:
        deadline = self.clock() + self.limits.wall_seconds
        recent: list[CallFinished] = []
        faults = 0
        for _ in range(self.limits.max_turns):
            if self.clock() >= deadline:
                yield Stopped("time", f"{self.limits.wall_seconds:g} seconds are over")
                return
            try:
                answer = yield from self._answer()
            except ContextOverflow as error:
                yield Stopped("context", str(error))
                return
            except ConversationError as error:
                recent, faults = [], faults + 1
                yield Malformed(str(error))
                if faults >= self.limits.max_malformed or not isinstance(error, MalformedReply):
                    yield Stopped("malformed", str(error))
                    return
                yield from self._put_right(error)
                continue
            faults = 0
            cut = answer if isinstance(answer, CutReply) else None
            self._messages.append(answer if cut is None else cut.message)
            if answer.content:
                yield AssistantText(answer.content)
            if answer.tool_call is None:
                self._finished_length = len(self._messages)
                yield Stopped("finished") if cut is None else Stopped("length", f"the reply was {cut.why}")
                return
            finished = yield from self._call(answer.tool_call)
            recent = [*recent, finished][-self.limits.max_repeats :]
            if recent == [finished] * self.limits.max_repeats:
                yield Stopped("repeated", f"the same {finished.call.name} call {len(recent)} times in a row")
                return
        yield Stopped("max_turns", f"{self.limits.max_turns} turns are over")

    def _answer(self) -> Generator[Event, None, Message]:
        """The model's next message. Raises what the responder and the context raise."""
        seen: Sequence[Message] = self.conversation
        if self.context is not None:
            view = self.context.view(seen)
            seen = view.messages
            if view.results or view.exchanges:
                yield Elided(view.results, view.exchanges)
        answer = (
            (yield from _heard(self.responder.stream(seen)))
            if isinstance(self.responder, StreamingResponder)
            else self.responder.respond(seen)
        )
        if answer.role != "assistant":
            raise ValueError(f"the responder returned a {answer.role} message instead of an assistant message")
        if (valid := _valid(answer)) != answer:
            raise MalformedReply("the reply holds half a character", valid)
        return answer

    def _call(self, call: ToolCall) -> Generator[Event, None, CallFinished]:
        yield CallRequested(call)
        finished = CallFinished(call, self.toolbox.execute(call))
        self._messages.append(Message("tool_result", finished.result.text))
        yield finished
        return finished

    def _put_right(self, error: MalformedReply) -> Iterator[Event]:
        """Go on from the nearest message that the model could have meant and a tool error that names its fault."""
        salvaged = _valid(error.salvaged)
        if salvaged.tool_call is None:
            raise ValueError("what was salvaged of a malformed reply has no call that could be answered")
        if isinstance(self.toolbox, ToolsWithRecord):
            result = self.toolbox.refuse_malformed(salvaged.tool_call, str(error))
        else:
            result = malformed_result(str(error))
        self._messages += [salvaged, Message("tool_result", result.text)]
        if salvaged.content:
            yield AssistantText(salvaged.content)


def _valid(message: Message) -> Message:
    """The message as tokens can hold it: an endpoint's JSON may bring lone surrogates."""
    call = message.tool_call or ToolCall("")
    arguments = {valid_text(name): valid_text(value) for name, value in call.arguments.items()}
    valid = ToolCall(valid_text(call.name), arguments)
    content = valid_text(message.content)
    if (content, valid) == (message.content, call):
        return message
    return Message("assistant", content, valid)


def _heard(pieces: Iterator[str | Message]) -> Generator[Event, None, Message]:
    """Pass the pieces on; the whole message ends them. A listener that leaves ends the speech as well."""
    try:
        for piece in pieces:
            if isinstance(piece, Message):
                return piece
            yield TextDelta(piece)
    finally:
        if isinstance(pieces, Generator):
            pieces.close()
    raise ValueError("the responder's stream ended without a message")
