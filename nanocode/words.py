r"""Text to words, the pieces that byte-level BPE never merges across: nanochat's variant of GPT-4's pattern.

`SPLIT_PATTERN` is what stands in ``tokenizer.json`` and what defines a word. The general engine behind it (Oniguruma,
in ``tokenizers``) takes most of the time of encoding, so text below U+3000 is split by Python's own, several times
faster. Which of those characters are letters, numbers or spaces is asked of the general engine, since two engines may
follow two versions of Unicode, and differ on what ``\s`` means.
"""

from __future__ import annotations

import functools
import re

from tokenizers import Regex, pre_tokenizers

SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)"
    r"|[^\r\n\p{L}\p{N}]?+\p{L}+"
    r"|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]"
    r"|\s+(?!\S)"
    r"|\s+"
)

FIRST_BEYOND = 0x3000  # scripts from here on have tens of thousands of letters, and hardly any code or English text
_beyond = re.compile(f"[{chr(FIRST_BEYOND)}-{chr(0x10FFFF)}]").search


def words(text: str) -> list[str]:
    """The words of a text, end to end."""
    if not text.isascii() and _beyond(text):
        return [word for word, _ in _general().pre_tokenize_str(text)]
    return _pattern().findall(text)


@functools.cache
def _general() -> pre_tokenizers.Split:
    return pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")


@functools.cache
def _pattern() -> re.Pattern[str]:
    letter, number, space = (_class(pattern) for pattern in (r"\p{L}", r"\p{N}", r"\s"))
    short = "".join(_class(f"(?i:{character})") for character in "sdmt")
    long = "|".join("".join(f"[{_class(f'(?i:{character})')}]" for character in pair) for pair in ("ll", "ve", "re"))
    return re.compile(
        f"'(?:[{short}]|{long})"
        rf"|[^\r\n{letter}{number}]?+[{letter}]++"
        f"|[{number}]{{1,2}}"
        rf"| ?[^{space}{letter}{number}]++[\r\n]*+"
        rf"|[{space}]*[\r\n]"
        f"|[{space}]+(?![^{space}])"
        f"|[{space}]+"
    )


def _class(pattern: str) -> str:
    """The characters below U+3000 that a pattern of the general engine matches, as the inside of a ``[...]``."""
    everything = "".join(map(chr, range(FIRST_BEYOND)))
    splitter = pre_tokenizers.Split(Regex(pattern), behavior="removed")
    position, ranges = 0, []
    for _, (start, end) in [*splitter.pre_tokenize_str(everything), ("", (FIRST_BEYOND, FIRST_BEYOND))]:
        if start > position:
            ranges.append(f"\\u{position:04x}-\\u{start - 1:04x}")
        position = end
    return "".join(ranges)
