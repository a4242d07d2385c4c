"""`nanocode agent -p`: one prompt, drawn for a person or, with --json, written as one event a line for a program."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from nanocode.agent.session import (
    AssistantText,
    CallFinished,
    CallRequested,
    Elided,
    Event,
    Malformed,
    Session,
    Stopped,
    TextDelta,
)
from nanocode.agent.terminal_commands import Model
from nanocode.agent.terminal_drawing import Screen
from nanocode.conversation import to_json

# Of the events below: raised when one changes its meaning or goes; new types and fields may come without.
EVENTS_VERSION = 1
INTERRUPTED = "interrupted"


class Listener(Protocol):
    """Hears of a run as it happens."""

    def start(self) -> None: ...

    def event(self, event: Event) -> None: ...

    def end(self, result: dict[str, Any]) -> None: ...


@dataclass
class Drawn:
    """For a person: events on the screen."""

    screen: Screen

    def start(self) -> None:
        self.screen.begin()

    def event(self, event: Event) -> None:
        self.screen.draw(event)

    def end(self, result: dict[str, Any]) -> None:
        self.screen.view.quiet()
        if result["stop_reason"] == INTERRUPTED:
            self.screen.line("stopped; what was edited stays", "yellow")


@dataclass
class Written:
    """For a program: events as JSON lines. ``setting`` goes into the first."""

    write: Callable[[str], None]
    setting: dict[str, Any] = field(default_factory=dict)

    def start(self) -> None:
        self._line({"type": "start", "version": EVENTS_VERSION, **self.setting})

    def event(self, event: Event) -> None:
        self._line(event_json(event))

    def end(self, result: dict[str, Any]) -> None:
        self._line({"type": "result", **result})

    def _line(self, document: dict[str, Any]) -> None:
        # Pure ASCII: no encoding to fail, and no character that could steer a terminal the lines end up on.
        self.write(json.dumps(document))


def event_json(event: Event) -> dict[str, Any]:
    """An event as plain JSON values; ``type`` names it."""
    match event:
        case TextDelta(text):
            return {"type": "text_delta", "text": text}
        case AssistantText(text):
            return {"type": "text", "text": text}
        case CallRequested(call):
            return {"type": "tool_call", "name": call.name, "arguments": dict(call.arguments)}
        case CallFinished(call, result):
            return {"type": "tool_result", "name": call.name, "ok": result.ok, "text": result.text}
        case Elided(results, exchanges):
            return {"type": "elided", "results": results, "exchanges": exchanges}
        case Malformed(detail):
            return {"type": "malformed", "detail": detail}
        case Stopped(reason, detail):
            return {"type": "stopped", "reason": reason, "detail": detail}


def run_once(
    session: Session, model: Model, task: str, listener: Listener, stopped: Callable[[], bool] = lambda: False
) -> bool:
    """Send ``task``; whether the model came to its own end.

    Ctrl-C ends the run as ``interrupted``, at a question too: that is what ``stopped`` tells after each event.
    """
    started, before = time.monotonic(), model.generated() or 0
    calls: list[CallFinished] = []
    reason, detail = INTERRUPTED, ""
    listener.start()
    try:
        for event in session.send(task):
            listener.event(event)
            if isinstance(event, CallFinished):
                calls.append(event)
            elif isinstance(event, Stopped):
                reason, detail = event.reason, event.detail
            if stopped():
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        detail = "Ctrl-C"
    except Exception as error:
        reason, detail = "error", " ".join(str(error).split())
        raise
    finally:
        generated = model.generated()
        listener.end(
            {
                "stop_reason": reason,
                "detail": detail,
                "calls": len(calls),
                "failed_calls": sum(not finished.result.ok for finished in calls),
                "generated_tokens": None if generated is None else generated - before,
                "context_tokens": model.count(session.seen),
                "seconds": round(time.monotonic() - started, 3),
                "conversation": to_json(session.conversation),
            }
        )
    return reason == "finished"
