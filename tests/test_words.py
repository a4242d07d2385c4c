"""Splitting into words: two engines, one result, on every character and on any text."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from nanocode.words import FIRST_BEYOND, SPLIT_PATTERN, words

# What decides between the alternatives, more often than chance would have it.
TELLING = list("'sdmtlvreSDMTLVRE09 \t\r\n\x0b\x1c\x85\xa0_-\u017f\u0301\u00b2\u2167\u2028\u200b\u2029\u0660")

texts = st.text(st.sampled_from(TELLING) | st.characters(max_codepoint=FIRST_BEYOND - 1, exclude_categories=["Cs"]))


def by_the_general_engine(text: str) -> list[str]:
    splitter = pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated")
    return [word for word, _ in splitter.pre_tokenize_str(text)]


@settings(max_examples=500)
@given(texts)
def test_words_are_those_of_the_general_engine(text: str) -> None:
    assert words(text) == by_the_general_engine(text)


@given(st.text())
def test_words_stand_end_to_end(text: str) -> None:
    assert "".join(words(text)) == text


@pytest.mark.parametrize("around", ["{}", "a{}a", "1{}1", ".{}.", " {} ", "'{}", "'l{}", "'{}e", "\n{}\n", "{0}{0} x"])
def test_every_character_is_of_the_kind_that_the_general_engine_says(around: str) -> None:
    """In a few surroundings each, a line for each character: one split shows which one differs."""
    lines = [around.format(chr(code)) for code in range(FIRST_BEYOND)]
    joined = "\x00\n\x00".join(lines)  # never part of a word together with a line
    ours, theirs = words(joined), by_the_general_engine(joined)
    assert ours == theirs, next((one, other) for one, other in zip(ours, theirs, strict=False) if one != other)


def test_text_beyond_is_split_as_well() -> None:
    assert words("let x = '漢字' # 🎉") == by_the_general_engine("let x = '漢字' # 🎉") != []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("don't we're", ["don", "'t", " we", "'re"]),
        ("x=12345", ["x", "=", "12", "34", "5"]),
        ("    return a", ["   ", " return", " a"]),
        ("a\n\n  b", ["a", "\n\n", " ", " b"]),
        ("<|bos|>", ["<|", "bos", "|>"]),
    ],
)
def test_the_pattern_splits_code_and_prose_as_nanochat_does(text: str, expected: list[str]) -> None:
    assert words(text) == expected
