"""The rule critic: SOUL.md's checkable principles as pure functions of a conversation.

It judges form, never truth: whether a file was really changed is for the task's own check. No text passes for being
unreadable: an empty, wordless or looping reply breaks ``concrete``.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from nanocode.constitution import phrases
from nanocode.constitution.soul import Principle, Soul, SoulError
from nanocode.constitution.terms import WORD, Names, mentions, names_of, prose_of, touched_by
from nanocode.conversation import Conversation, Message

BEST_SCORE, WORST_SCORE = 5, 1
EXCERPT_CHARACTERS = 60


@dataclass(frozen=True)
class Violation:
    """One principle broken in one message. ``message`` is an index into the conversation."""

    principle: str
    message: int
    excerpt: str


@dataclass(frozen=True)
class Critique:
    """``score``: 5 means no violation, one point less per principle broken, never below 1. ``text``: in words."""

    score: int
    violations: tuple[Violation, ...]
    text: str


@dataclass(frozen=True)
class _Reply:
    """One assistant message: its index, and its text without code and names."""

    index: int
    message: Message
    prose: str


@dataclass(frozen=True)
class _Turn:
    """What stands between two user messages: all messages, the index of the first, and the assistant's replies."""

    start: int
    messages: list[Message]
    replies: list[_Reply]


Findings = Iterator[tuple[int, str]]
Rule = Callable[[Sequence[_Turn]], Findings]


def critique(conversation: Conversation, soul: Soul) -> Critique:
    """Judge the assistant's messages by every principle with ``check = "rule"``; ``judged`` ones are left to models.

    Raises SoulError if SOUL.md names a rule that does not exist here, ValueError if there is no assistant message.
    """
    principles = [principle for principle in soul.principles if principle.check == "rule"]
    for principle in principles:
        if principle.id not in RULES:
            known = ", ".join(RULES)
            raise SoulError(
                f"there is no rule for the principle {principle.id!r}: mark it judged, or use one of {known}"
            )
    if not any(message.role == "assistant" for message in conversation):
        raise ValueError("there is no assistant message to criticise")
    turns = _turns(conversation, names_of(conversation, soul.proper_nouns))
    violations = tuple(
        Violation(principle.id, index, " ".join(excerpt.split())[:EXCERPT_CHARACTERS])
        for principle in principles
        for index, excerpt in RULES[principle.id](turns)
    )
    broken = {violation.principle for violation in violations}
    return Critique(max(WORST_SCORE, BEST_SCORE - len(broken)), violations, _in_words(violations, principles))


def adheres(conversation: Conversation, soul: Soul) -> bool:
    """True if no rule is broken."""
    return critique(conversation, soul).score == BEST_SCORE


def _in_words(violations: Sequence[Violation], principles: Sequence[Principle]) -> str:
    if not violations:
        return "follows every rule."
    statements = {principle.id: principle.statement for principle in principles}
    return " ".join(
        f"message {found.message} breaks {found.principle} ({found.excerpt!r}): {statements[found.principle]}"
        for found in violations
    )


def _turns(conversation: Conversation, names: Names) -> list[_Turn]:
    turns: list[_Turn] = []
    for index, message in enumerate(conversation):
        if message.role == "user":
            turns.append(_Turn(index + 1, [], []))
        elif turns:
            turns[-1].messages.append(message)
            if message.role == "assistant":
                turns[-1].replies.append(_Reply(index, message, prose_of(message.content, names)))
    return [turn for turn in turns if turn.messages]


def _lowercase(turns: Sequence[_Turn]) -> Findings:
    for reply in _replies(turns):
        shouted = next((word for word in WORD.findall(reply.prose) if word != word.lower()), None)
        if shouted is not None:
            yield reply.index, shouted


def _phrase_rule(pattern: re.Pattern[str]) -> Rule:
    """A rule that fails every assistant message whose prose matches `pattern`."""

    def rule(turns: Sequence[_Turn]) -> Findings:
        for reply in _replies(turns):
            found = pattern.search(reply.prose)
            if found:
                yield reply.index, found.group()

    return rule


def _no_closing_offer(turns: Sequence[_Turn]) -> Findings:
    for turn in turns:
        edited = any(
            reply.message.tool_call is not None and reply.message.tool_call.name == "Edit" for reply in turn.replies
        )
        for reply in turn.replies:
            excerpt = None if reply.message.tool_call is not None else _offer_in(reply.prose, edited)
            if excerpt is not None:
                yield reply.index, excerpt


def _offer_in(prose: str, edited: bool) -> str | None:
    """The offer or idle question in a closing reply; before any edit, asking for something missing is neither."""
    offer = phrases.OFFER.search(prose)
    if offer:
        return offer.group()
    question = phrases.LAST_QUESTION.search(prose)
    asks_back = not edited and question is not None and phrases.ASKS_FOR_SOMETHING.search(question.group())
    if asks_back:
        return None
    idle = phrases.YES_NO_OFFER.search(prose) or question
    return idle.group() if idle else None


def _concrete(turns: Sequence[_Turn]) -> Findings:
    for reply in _replies(turns):
        garbage = (
            phrases.GARBAGE.search(reply.message.content)
            or phrases.LOOP.search(reply.prose)
            or phrases.STUTTER.search(reply.prose)
        )
        if garbage:
            yield reply.index, f"unreadable: {garbage.group()}"
        elif reply.message.content.strip() and not any(character.isalpha() for character in reply.prose):
            yield reply.index, f"no words: {reply.message.content}"
    for turn in turns:
        last = turn.messages[-1]
        last_index = turn.start + len(turn.messages) - 1
        if last.role != "assistant" or last.tool_call is not None:
            yield last_index, "the turn ends without a reply"
        elif not last.content.strip():
            yield last_index, "the reply is empty"
        elif len(turn.messages) > 1 and not mentions(last.content, touched_by(turn.messages)):
            yield last_index, f"names nothing: {last.content}"


def _look_before_edit(turns: Sequence[_Turn]) -> Findings:
    seen: set[str] = set()
    for turn in turns:
        for offset, message in enumerate(turn.messages):
            call = message.tool_call
            if call is None:
                continue
            path = posixpath.normpath(call.arguments.get("file_path") or call.arguments.get("path") or ".")
            if call.name == "Edit" and "old_string" in call.arguments and path not in seen:
                yield turn.start + offset, path
            if call.name in ("Read", "Grep", "Edit"):
                seen.add(path)
            if call.name == "Grep" and offset + 1 < len(turn.messages):
                results = turn.messages[offset + 1].content.splitlines()
                seen |= {posixpath.normpath(line.split(":", 1)[0]) for line in results}


def _replies(turns: Sequence[_Turn]) -> Iterator[_Reply]:
    for turn in turns:
        yield from turn.replies


RULES: dict[str, Rule] = {
    "lowercase": _lowercase,
    "no-flattery": _phrase_rule(phrases.FLATTERY),
    "no-apology": _phrase_rule(phrases.APOLOGY),
    "no-exclamation": _phrase_rule(phrases.EXCLAMATION),
    "no-closing-offer": _no_closing_offer,
    "concrete": _concrete,
    "look-before-edit": _look_before_edit,
}
