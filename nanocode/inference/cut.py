"""A reply that a bound cut off before the model had ended it; kept apart, so that hearing of it does not import JAX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nanocode.conversation import MalformedReply, Message, parse_assistant
from nanocode.tokenizer import Tokenizer


@dataclass(frozen=True)
class CutReply(Message):
    """What there is of an assistant's text that has no end. ``why`` says in words what cut it off."""

    why: str = ""

    @property
    def message(self) -> Message:
        """As it stands in a conversation, where a cut cannot be seen."""
        return Message(self.role, self.content, self.tool_call)


def parse_reply(ids: Sequence[int], tokenizer: Tokenizer) -> Message:
    """`parse_assistant` of all ids that a model has generated; a CutReply when its text ends without the model's end.

    A whole call without ``<|assistant_end|>`` is a call, nothing of it is missing. Raises MalformedReply for what is no
    message, and says of a reply that was cut that it was.
    """
    cut = "" if list(ids[-1:]) == [tokenizer.special["<|assistant_end|>"]] else f"cut off after {len(ids)} tokens"
    try:
        message = parse_assistant(ids, tokenizer)
    except MalformedReply as error:
        if not cut:
            raise
        raise MalformedReply(f"{cut}: {error}", error.salvaged) from None
    return CutReply(message.role, message.content, why=cut) if cut and message.tool_call is None else message
