"""What the agent's session talks to: a conversation in, the assistant's message out, at once or as it comes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from nanocode.conversation import Message, render_prompt
from nanocode.inference.cut import parse_reply
from nanocode.inference.engine import Engine
from nanocode.inference.grammar import ToolGrammar
from nanocode.inference.live import LiveDecoder
from nanocode.inference.reply_text import ReplyText
from nanocode.inference.sampling import Sampling
from nanocode.tokenizer import Tokenizer


class ModelResponder:
    """One conversation at a time, greedy without `sampling`; with a `grammar` a reply that is not cut short parses.

    The cache lives across turns. Each turn's draws are numbered by the prompt's length, so that a turn asked for again
    says the same.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_new_tokens: int,
        sampling: Sampling | None = None,
        grammar: ToolGrammar | None = None,
    ) -> None:
        self._decoder, self._tokenizer = LiveDecoder(engine), engine.tokenizer
        self._max_new_tokens, self._sampling, self._grammar = max_new_tokens, sampling or Sampling(), grammar
        self.generated_tokens = 0
        """Since this responder was made, those of tool calls and the ends of replies included."""

    def respond(self, conversation: Sequence[Message]) -> Message:
        """The next assistant message, a CutReply after `max_new_tokens` or at the end of the context.

        Raises ContextOverflow, or ConversationError when the output is no message.
        """
        return parse_reply(list(self._ids(conversation)), self._tokenizer)

    def stream(self, conversation: Sequence[Message]) -> Iterator[str | Message]:
        """The pieces of the message's text as they come, then the message, whose text the pieces add up to.

        Closing the iterator early is allowed. Raises as `respond` does, the ConversationError behind the last piece.
        """
        ids: list[int] = []
        yield from text_pieces(_recorded(self._ids(conversation), ids), self._tokenizer)
        yield parse_reply(ids, self._tokenizer)

    def _ids(self, conversation: Sequence[Message]) -> Iterator[int]:
        prompt = render_prompt(conversation, self._tokenizer)
        for sampled in self._decoder.stream(
            prompt, max_new_tokens=self._max_new_tokens, sampling=self._sampling, grammar=self._grammar
        ):
            self.generated_tokens += 1
            yield sampled.id


def text_pieces(ids: Iterable[int], tokenizer: Tokenizer) -> Iterator[str]:
    """The reply's text as `ReplyText` tells it, in non-empty pieces. Every id is taken, those of a tool call too."""
    text = ReplyText(tokenizer)
    for token in ids:
        if piece := text.add(token):
            yield piece
    if rest := text.end():
        yield rest


def _recorded(ids: Iterable[int], into: list[int]) -> Iterator[int]:
    for token in ids:
        into.append(token)
        yield token
