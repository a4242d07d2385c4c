"""Learning merges: the library's own trainer gives the same ones, in the same order."""

from __future__ import annotations

import json
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, pre_tokenizers, trainers

from nanocode.merges import learn_merges

LETTERS = "abcdxyz"  # byte-level BPE spells them as themselves

# Few letters and long repeats: ties, overlapping pairs, and tokens that two pairs can make.
words = st.lists(st.text("ab", min_size=1, max_size=14) | st.text(LETTERS, min_size=1, max_size=9), max_size=40)


def by_the_library(texts: list[str], tokens: int) -> list[tuple[str, str]]:
    backend = HFTokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    trainer = trainers.BpeTrainer(
        vocab_size=tokens, initial_alphabet=list(LETTERS), special_tokens=[], show_progress=False
    )
    backend.train_from_iterator([" ".join(texts)], trainer)
    return [tuple(merge) for merge in json.loads(backend.to_str())["model"]["merges"]]


def by_us(texts: list[str], tokens: int) -> list[tuple[str, str]]:
    letters = LETTERS.encode()
    alphabet = [*letters, *(byte for byte in range(256) if byte not in letters)]
    counts = {word.encode(): count for word, count in Counter(texts).items()}
    spelling = [chr(byte) for byte in alphabet]
    merges = []
    for left, right, result in learn_merges(counts, alphabet, 256 - len(letters) + tokens):
        merges.append((spelling[left], spelling[right]))
        if result == len(spelling):
            spelling.append(spelling[left] + spelling[right])
    return merges


@settings(max_examples=400)
@given(words, st.integers(len(LETTERS), 80))
def test_merges_are_those_of_the_library(texts: list[str], tokens: int) -> None:
    # New tokens have ids from 256 on here and from 7 on there, above the letters both times: ties fall alike.
    assert by_us(texts, tokens) == by_the_library(texts, tokens)


def test_counts_decide_and_then_the_lower_ids() -> None:
    assert by_us(["ab", "ab", "cd", "xy", "xy"], 10) == [("a", "b"), ("x", "y"), ("c", "d")]


def test_a_run_of_one_letter_is_merged_from_the_left() -> None:
    assert by_us(["aaaaa"] * 2, 10) == [("a", "a"), ("aa", "a"), ("aa", "aaa")]


def test_no_words_give_no_merges() -> None:
    assert learn_merges({}, range(256), 300) == []
