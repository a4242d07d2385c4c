"""What of a long conversation the model still sees: old tool results make room first, then old exchanges.

The model was trained on so many positions, and a prompt must leave some of them for the reply. A session's own record
stays whole; the model is shown a *view* of it in which the oldest tool results are replaced by a short marker and the
oldest finished exchanges are left out. A view is a conversation like any other: whole messages, rendered as always, so
nothing is ever cut inside a token or a turn. The user's current message always stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from nanocode.conversation import Message, render_prompt
from nanocode.inference.overflow import ContextOverflow
from nanocode.tokenizer import Tokenizer

ELIDED = "[result elided]"
# Once over the limit, go down to this share of it: the next turns then extend the same prompt, and its cached keys and
# values stay good.
LOW_WATER = 0.75
REPLY_SHARE = 0.25


@dataclass(frozen=True)
class View:
    """What the model is fed now, and how many results and exchanges have been left out since the last view."""

    messages: tuple[Message, ...]
    results: int = 0
    exchanges: int = 0


@dataclass
class ContextWindow:
    """The view of one conversation that grows. ``count`` gives the tokens of the prompt of some messages.

    What has been left out stays left out, so that a prompt changes only when it must.
    """

    count: Callable[[Sequence[Message]], int]
    limit_tokens: int
    _results: int = field(default=0, init=False)
    _exchanges: int = field(default=0, init=False)

    @classmethod
    def of_model(cls, tokenizer: Tokenizer, context_tokens: int, reply_tokens: int | None = None) -> ContextWindow:
        """For a model of ``context_tokens`` trained positions, ``reply_tokens`` of them kept free (a quarter).

        Raises ValueError when that leaves nothing for the conversation.
        """
        reply = round(context_tokens * REPLY_SHARE) if reply_tokens is None else reply_tokens
        if not 0 < reply < context_tokens:
            raise ValueError(f"a reply of {reply} tokens leaves no room in a context of {context_tokens}: ask for less")
        return cls(lambda messages: len(render_prompt(messages, tokenizer)), context_tokens - reply)

    def rewind(self, messages: Sequence[Message]) -> None:
        """Forget what was left out of messages that are no longer in the record."""
        self._results, self._exchanges = self._left_out(messages)

    def view(self, messages: Sequence[Message]) -> View:
        """What of ``messages`` (a user message or a tool result comes last) the model is to see.

        Raises ContextOverflow when even the least does not fit.
        """
        before = self._results, self._exchanges
        if self._tokens(messages) > self.limit_tokens:
            self._make_room(messages)
        shortened = sum(len(messages[place].content) > len(ELIDED) for place in _results(messages)[before[0] :])
        kept = sum(len(messages[place].content) > len(ELIDED) for place in _results(messages)[self._results :])
        return View(self.shown(messages), shortened - kept, self._exchanges - before[1])

    def _make_room(self, messages: Sequence[Message]) -> None:
        """Older results, then older exchanges, each until the low water is reached; the newest result comes last."""
        low = int(self.limit_tokens * LOW_WATER)
        newest = len(_results(messages))
        while self._results < newest - 1 and self._tokens(messages) > low:
            self._results += 1
        if self._tokens(messages) <= self.limit_tokens:
            return
        while self._exchanges < _exchanges(messages) - 1 and self._tokens(messages) > low:
            self._exchanges += 1
        if self._tokens(messages) > self.limit_tokens:
            self._results = newest
        if (tokens := self._tokens(messages)) > self.limit_tokens:
            raise ContextOverflow(
                f"the conversation has {tokens} tokens at its shortest, at most {self.limit_tokens} fit"
            )

    def _tokens(self, messages: Sequence[Message]) -> int:
        return self.count(self.shown(messages))

    def _left_out(self, messages: Sequence[Message]) -> tuple[int, int]:
        """How many results and exchanges of these messages, whose last exchange always stays."""
        return min(self._results, len(_results(messages))), min(self._exchanges, max(_exchanges(messages) - 1, 0))

    def shown(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages without what has been left out so far; unlike in `view`, no more makes room."""
        results, exchanges = self._left_out(messages)
        shown = list(messages)
        for place in _results(messages)[:results]:
            if len(shown[place].content) > len(ELIDED):
                shown[place] = replace(shown[place], content=ELIDED)
        if not exchanges:
            return tuple(shown)
        opening = shown[:1] if shown[0].role == "system" else []
        starts = [place for place, message in enumerate(shown) if message.role == "user"]
        return (*opening, *shown[starts[exchanges] :])


def _results(messages: Sequence[Message]) -> list[int]:
    return [place for place, message in enumerate(messages) if message.role == "tool_result"]


def _exchanges(messages: Sequence[Message]) -> int:
    return sum(message.role == "user" for message in messages)
