"""The wording that the rule critic looks for: compiled patterns over a reply's prose (code and names removed)."""

from __future__ import annotations

import re

LOOP_REPEATS = 4


def _any_of(*alternatives: str) -> re.Pattern[str]:
    return re.compile("|".join(alternatives), re.IGNORECASE)


FLATTERY = _any_of(
    r"\b(?:great|good|excellent|nice|wonderful|smart|clever|interesting) "
    r"(?:question|choice|idea|point|thinking|catch|job|work)\b",
    r"\b(?:well done|good call|brilliant|awesome|amazing|fantastic|wonderful|impressive)\b",
    r"\byou(?:'re| are) (?:absolutely|so|quite) right\b",
    r"\b(?:happy|glad|delighted|pleased|thrilled|excited) (?:to|you)\b",
    r"\b(?:my|with) pleasure\b",
    r"\blove (?:this|that|your|the)\b",
    r"^\W*(?:certainly|absolutely|of course|sure thing|great|perfect|excellent)\b",
)
APOLOGY = _any_of(
    r"\b(?:sorry|unfortunately|apolog(?:y|ies|etic|i[sz]e[sd]?|i[sz]ing)|regret(?:s|ted|tably|fully)?)\b",
    r"\b(?:my (?:bad|mistake|fault)|(?:forgive|pardon|excuse) me|i(?:'m| am) afraid)\b",
)
EXCLAMATION = re.compile(r"\S*(?:!(?!=)|！)")
OFFER = _any_of(
    r"\b(?:let me know|(?:anything|something|what) else|feel free|don't hesitate|reach out|just ask)\b",
    r"\bif you(?:'d| would)? (?:need|want|wish|like|have any|prefer)\b",
    r"\b(?:i (?:can|could) also|hope (?:this|that|it) helps|does (?:that|this) help)\b",
    r"\bhow (?:can|may|could|shall|should) i (?:help|assist|proceed)\b",
    r"\bwhat (?:(?:can|may|could) i (?:do|help)|next|now)\b",
    r"\bwhat (?:would you like|do you want)(?: me)? to (?:do|work|build|see|try)\b",
    r"\b(?:next steps?|next, (?:i|we|you))\b",
)
YES_NO_OFFER = _any_of(
    r"\b(?:would you like|do you want|want me to|(?:shall|should|can|may|could) i|are you (?:happy|ok|okay))\b"
)
ASKS_FOR_SOMETHING = _any_of(r"\b(?:which|what|whose|who|where|when|how (?:many|much|long)|did you mean)\b")
LAST_QUESTION = re.compile(r"[^.!?\n]*[?]\W*\Z")

GARBAGE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]|<\|[a-z_]+\|>")
LOOP = re.compile(rf"(\b\S+(?:\s+\S+){{0,4}}?)(?:\s+\1){{{LOOP_REPEATS - 1},}}")
STUTTER = re.compile(rf"(\w{{1,4}}\W?)\1{{{2 * LOOP_REPEATS - 1},}}")
