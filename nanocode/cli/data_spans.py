"""A rendered conversation as spans of text: what is trained on, as the one renderer's loss mask has it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any

from nanocode.conversation import Conversation, Rendered, render
from nanocode.tokenizer import SPECIAL_TOKENS, Tokenizer

_OPENERS = {"<|user_start|>": "user", "<|assistant_start|>": "assistant", "<|tool_result_start|>": "tool_result"}
_CONTROL = {character: f"\\x{character:02x}" for character in [*range(0x20), 0x7F, *range(0x80, 0xA0)]}
for _shown in "\t\n":
    del _CONTROL[ord(_shown)]


@dataclass(frozen=True)
class Span:
    """Consecutive tokens of one turn that are all trained on or all not. Control tokens stand by their names.

    `control`: there is nothing but a control token in it, and not a text that looks like one.
    """

    role: str
    text: str
    trained: bool
    control: bool = False


@dataclass(frozen=True)
class Shown:
    """One conversation's spans, and its lengths in tokens."""

    spans: tuple[Span, ...]
    tokens: int
    trained_tokens: int

    def turns(self) -> Iterator[tuple[str, list[Span]]]:
        """(role, spans) of every turn, without the tokens that only open and close it, which the role says."""
        turn: list[Span] = []
        for span in self.spans:
            if not span.control:
                turn.append(span)
            elif span.text in _OPENERS and turn:
                yield turn[0].role, turn
                turn = []
        if turn:
            yield turn[0].role, turn

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        spans = [asdict(span) for span in self.spans]
        return {"tokens": self.tokens, "trained_tokens": self.trained_tokens, "spans": spans}


def bytes_tokenizer() -> Tokenizer:
    """A tokenizer of single bytes: what is trained on does not depend on the merges, only counts of tokens do."""
    return Tokenizer.train([], 256 + len(SPECIAL_TOKENS))


def shown(conversation: Conversation, tokenizer: Tokenizer) -> Shown:
    """The spans of a conversation. Raises ConversationError."""
    rendered = render(conversation, tokenizer)
    return Shown(tuple(_spans(rendered, tokenizer)), len(rendered.ids), sum(rendered.mask))


def visible(text: str) -> str:
    """Text in which control characters stand as escapes, so that a file cannot move the cursor or change colours."""
    return text.translate(_CONTROL)


def _spans(rendered: Rendered, tokenizer: Tokenizer) -> Iterator[Span]:
    names = {token: name for name, token in tokenizer.special.items()}
    role, pieces = "", list[Span]()
    tokens = zip(rendered.ids, rendered.mask, strict=True)
    for (is_control, is_trained), run in groupby(tokens, lambda pair: (pair[0] in names, bool(pair[1]))):
        ids = [token for token, _ in run]
        for name in [names[token] for token in ids] if is_control else [tokenizer.decode(ids)]:
            role = _OPENERS.get(name, role) if is_control else role
            pieces.append(Span(role, name, is_trained, is_control))
    for is_trained, group in groupby(pieces, lambda piece: piece.trained):
        if is_trained:
            trained = list(group)
            yield Span(trained[0].role, "".join(piece.text for piece in trained), True)
        else:
            yield from group
