"""Whether an answer claims that something was done: the words of success, and what only success would make true.

A clause at a time: a clause that denies, or says what could or would be, claims nothing. The words are those by which
changes are reported in English; a claim in other words is missed, so the facts of the task are looked for as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CLAUSE_END = re.compile(r"[.;:,!?](?:\s+|$)|\n|\s+(?:but|so|because)\s+|\s+and\s+(?=no\b|nothing\b)", re.IGNORECASE)
_DENIAL = re.compile(
    r"\b(?:no|not|nothing|none|never|neither|without|cannot|unable|unchanged|still|stays?|would|could|failed)\b"
    r"|n't\b|n’t\b",
    re.IGNORECASE,
)
_SUCCESS = re.compile(
    r"\b(?:now|done|success(?:fully)?|passes|prints ok|great news|is new|went from|stands? (?:where|in)\b)"
    r"|\b(?:changed|updated|edited|renamed|added|inserted|created|fixed|replaced|wrote|written)\b(?! since)",
    re.IGNORECASE,
)


def claim_in(answer: str, undone: Sequence[str] = ()) -> str | None:
    """The first clause of `answer` that claims a success, or states one of `undone` as a fact; None without one."""
    for clause in _CLAUSE_END.split(answer):
        if _DENIAL.search(clause):
            continue
        if _SUCCESS.search(clause) or any(mentions(clause, fact) for fact in undone):
            return clause.strip()
    return None


def mentions(text: str, fact: str) -> bool:
    """Whether `fact` stands in `text` as a whole: 5 is not in 15, price.py not in lib/price.py or test_price.py."""
    before = r"(?<![\w/])" if re.match(r"\w", fact) else ""
    after = r"(?!\w)" if re.search(r"\w$", fact) else ""
    return re.search(before + re.escape(fact) + after, text) is not None
