"""The names that tasks are made of, and which split may use which.

Function names are verb_noun, constants QUALIFIER_NOUN, file names a noun. What is held out is the *pair*: every word is
seen in training, but a pair belongs, by a stable hash of its text, to exactly one split. Prompts that name a pair are
therefore disjoint across splits by construction.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, get_args

Split = Literal["sft", "preference", "validation", "eval"]
SPLITS: tuple[Split, ...] = get_args(Split)

# Four letters at most: a vocabulary of 1,024 entries then spends one or two tokens on a word.
_VERB_LIST = (
    "add ask bind call copy cut draw drop dump edit fill find flip get hide hold join keep load lock make mark "
    "move open pack pick post pull push put read roll save scan send set show skip sort sum swap take trim turn "
    "use wait wrap"
)
_NOUN_LIST = (
    "age area band bank book box card cart cell city cost day desk disk door edge fee flag game gate grid hour "
    "item key lamp link menu mode node note page pair part plan port rate road room row rule seat shop side size "
    "slot song step tag task team tile tool tree unit user wall week year zone"
)
_QUALIFIER_LIST = "BASE BIG END FULL HALF HIGH LAST LOW MAIN MAX MIN NET NEW NEXT OLD RAW TOP"
VERBS, NOUNS, QUALIFIERS = (tuple(words.split()) for words in (_VERB_LIST, _NOUN_LIST, _QUALIFIER_LIST))

# Upper ends, in percent, of each split's share of the hash space.
_SHARES: tuple[tuple[Split, int], ...] = (("sft", 70), ("preference", 80), ("validation", 85), ("eval", 100))


def pool_of(text: str) -> Split:
    """The one split that may use `text` (a pair, or a whole prompt that names none)."""
    bucket = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % 100
    return next(split for split, end in _SHARES if bucket < end)


@cache
def function_names(split: Split) -> tuple[str, ...]:
    """Every verb_noun of this split, in a fixed order."""
    pairs = (f"{verb}_{noun}" for verb in VERBS for noun in NOUNS)
    return tuple(pair for pair in pairs if pool_of(pair) == split)


@cache
def constant_names(split: Split) -> tuple[str, ...]:
    """Every QUALIFIER_NOUN of this split, in a fixed order."""
    pairs = (f"{qualifier}_{noun.upper()}" for qualifier in QUALIFIERS for noun in NOUNS)
    return tuple(pair for pair in pairs if pool_of(pair) == split)


@dataclass
class Names:
    """Draws names of one split for one task, none twice."""

    split: Split
    rng: random.Random
    _used: set[str] = field(default_factory=set)

    def function(self) -> str:
        return self._fresh(function_names(self.split))

    def constant(self) -> str:
        return self._fresh(constant_names(self.split))

    def path(self) -> str:
        return f"{self._fresh(NOUNS)}.py"

    def value(self) -> str:
        """A number of one or two digits, none twice in a task: a small model copies digit by digit."""
        one_digit_left = any(str(digit) not in self._used for digit in range(2, 10))
        top = self.rng.choice((10, 100)) if one_digit_left else 100
        return self._fresh(range(2, top))

    def _fresh(self, choices: range | tuple[str, ...] | list[str]) -> str:
        while True:
            drawn = str(self.rng.choice(choices))
            if drawn not in self._used:
                self._used.add(drawn)
                return drawn
