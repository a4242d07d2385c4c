"""What a converted conversation must pass before it is trained on: decontamination, length, no duplicate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from nanocode.conversation import Conversation, Message, Rendered, render
from nanocode.data.decontaminate import OverlapIndex
from nanocode.data.deduplicate import Deduplicator, fingerprint
from nanocode.tokenizer import Tokenizer

CONTAMINATED, TOO_LONG = "contaminated", "longer than the context"


class Gates:
    """Judges conversations one by one and remembers those that it let pass.

    `overlap` None: nothing to decontaminate from; `drop_coverage` None: overlaps are counted in `touched` alone.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        context_tokens: int,
        near_duplicate_threshold: float,
        overlap: OverlapIndex | None = None,
        drop_coverage: float | None = None,
    ) -> None:
        self._tokenizer, self._context_tokens = tokenizer, context_tokens
        self._overlap, self._drop_coverage = overlap, drop_coverage
        self._near = near_duplicate_threshold < 1
        self._deduplicator = Deduplicator(near_duplicate_threshold)
        self.touched: Counter[str] = Counter()

    def judge(self, conversation: Conversation, files: Iterable[str] = ()) -> tuple[str | None, Rendered | None]:
        """The reason to drop it, else None and the conversation as it is trained on.

        `files` are the texts of the workspace at the start: tools show them, under line numbers that hide a leak.
        """
        text = words_of(conversation)
        if self._is_contaminated("\n".join([text, *files])):
            return CONTAMINATED, None
        rendered = render(conversation, self._tokenizer)
        if len(rendered.ids) > self._context_tokens:
            return TOO_LONG, None
        return self._deduplicator.check(fingerprint(text, self._near)), rendered

    def remember(self, conversation: Conversation) -> None:
        """Know a conversation that was let pass before, in another process."""
        self._deduplicator.remember(fingerprint(words_of(conversation), self._near))

    def _is_contaminated(self, text: str) -> bool:
        found = self._overlap.overlaps(text) if self._overlap is not None else []
        self.touched.update(overlap.item for overlap in found)
        limit = self._drop_coverage
        return limit is not None and any(overlap.coverage >= limit for overlap in found)


def words_of(conversation: Sequence[Message]) -> str:
    """What was said and written; tool results repeat it."""
    parts: list[str] = []
    for message in conversation:
        if message.role != "tool_result":
            parts.append(message.content)
        if message.tool_call is not None:
            parts.extend(value for key, value in message.tool_call.arguments.items() if key != "file_path")
    return "\n".join(part for part in parts if part)
