"""Reading the critic's and the reviser's replies: strict JSON, a fenced object, the first object, else not parsed.

What cannot be read is never a score: callers ask for a repair once and then file the conversation as unscored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from nanocode.constitution.rules import BEST_SCORE, WORST_SCORE
from nanocode.constitution.wire import is_text

# The brace of an object, not one of prose: a name in quotes or the end follows.
_OBJECT = re.compile(r"\{(?=\s*[\"}])")
_FENCED_OBJECT = re.compile(r"```\w*\s*" + _OBJECT.pattern)


class Unparsed(ValueError):
    """A reply that does not hold what was asked for; the message says what is wrong, for the repair turn."""


@dataclass(frozen=True)
class CriticReply:
    """``score`` from 1 to 5, ids of the principles broken, and the critique in words."""

    score: int
    violations: tuple[str, ...]
    critique: str


def parse_critique(text: str, principles: Sequence[str]) -> CriticReply:
    """Read a critic's reply; `principles` are the ids it may name. Raises Unparsed."""
    reply = _object_in(text)
    score, violations, critique = (_member(reply, name) for name in ("score", "violations", "critique"))
    if not isinstance(score, int) or isinstance(score, bool) or not WORST_SCORE <= score <= BEST_SCORE:
        raise Unparsed(f"score must be an integer from {WORST_SCORE} to {BEST_SCORE}, not {score!r}")
    if not isinstance(violations, list) or not all(isinstance(name, str) for name in violations):
        raise Unparsed("violations must be a list of principle ids")
    unknown = [name for name in violations if name not in principles]
    if unknown:
        raise Unparsed(f"{unknown[0]!r} is not a principle id: use {', '.join(principles)}")
    if not isinstance(critique, str) or not is_text(critique):
        raise Unparsed("critique must be a string")
    if (score == BEST_SCORE) == bool(violations):
        raise Unparsed(f"score {score} contradicts {len(violations)} violations: {BEST_SCORE} means none")
    return CriticReply(score, tuple(dict.fromkeys(violations)), critique)


def parse_texts(text: str, count: int) -> tuple[str, ...]:
    """Read a reviser's reply: exactly `count` texts. Raises Unparsed."""
    texts = _member(_object_in(text), "texts")
    if not isinstance(texts, list) or not all(isinstance(entry, str) and is_text(entry) for entry in texts):
        raise Unparsed("texts must be a list of strings")
    if len(texts) != count:
        raise Unparsed(f"texts must hold one string per assistant message: {count}, not {len(texts)}")
    return tuple(texts)


def _member(reply: dict[str, Any], name: str) -> Any:
    if name not in reply:
        raise Unparsed(f"the object lacks {name!r}")
    return reply[name]


def _object_in(text: str) -> dict[str, Any]:
    """The JSON object that `text` is, or the one in its first fence, or the first one in it after whatever words.

    A fence or an opening brace whose object is torn ends the search: what lies inside is a part, not the answer.
    """
    decoder = json.JSONDecoder(parse_constant=_refuse_constant)
    whole: Any
    fault: Exception
    try:
        whole = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        whole, fault = None, error
    else:
        fault = ValueError("it is not an object")
    if isinstance(whole, dict):
        return whole
    start = _FENCED_OBJECT.search(text) or _OBJECT.search(text)
    if start is not None:
        try:
            return decoder.raw_decode(text, start.end() - 1)[0]
        except (ValueError, RecursionError) as error:
            fault = error
    raise Unparsed(f"there is no JSON object in the reply ({fault})")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
