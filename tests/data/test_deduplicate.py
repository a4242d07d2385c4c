"""Duplicates: exact, near, neither; the same verdicts every time; fast enough for the nano corpora."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from nanocode.data.deduplicate import MAX_SHINGLES, Deduplicator, Duplicate, fingerprint, shingle_hashes

VOCABULARY = [f"word{number}" for number in range(4_000)]


def text(seed: int, words: int = 400) -> list[str]:
    return random.Random(seed).choices(VOCABULARY, k=words)


def changed(words: list[str], every: int) -> list[str]:
    """A changed word spoils five shingles: one in `every` leaves a Jaccard similarity of (every-5)/(every+5)."""
    return [f"{word}x" if index % every == every // 2 else word for index, word in enumerate(words)]


def jaccard(one: list[str], two: list[str]) -> float:
    shingles = [{tuple(words[at : at + 5]) for at in range(len(words) - 4)} for words in (one, two)]
    return len(shingles[0] & shingles[1]) / len(shingles[0] | shingles[1])


def check(deduplicator: Deduplicator, text: str, near: bool = True) -> Duplicate | None:
    return deduplicator.check(fingerprint(text, near))


def test_exact_duplicates_differ_in_white_space_and_case_alone() -> None:
    deduplicator = Deduplicator(1)
    assert check(deduplicator, "Some text,\n  twice") is None
    assert check(deduplicator, "some TEXT, twice\n") == "exact_duplicate"
    assert check(deduplicator, "some text twice") is None


@pytest.mark.parametrize(("every", "verdict"), [(100, "near_duplicate"), (14, None)])
def test_similarity_on_either_side_of_the_threshold(every: int, verdict: str | None) -> None:
    agreed = 0
    for seed in range(40):
        original, other = text(seed), changed(text(seed), every)
        assert (jaccard(original, other) > 0.8) == (verdict is not None)
        deduplicator = Deduplicator(0.8)
        assert check(deduplicator, " ".join(original)) is None
        agreed += check(deduplicator, " ".join(other)) == verdict
    assert agreed == 40


def test_a_threshold_of_one_keeps_near_duplicates() -> None:
    deduplicator = Deduplicator(1)
    assert [check(deduplicator, " ".join(words)) for words in (text(1), changed(text(1), 100))] == [None, None]


def test_a_dropped_text_does_not_drop_others_in_a_chain() -> None:
    """B is near A and C near B but not near A: with B dropped, C is compared with A alone."""
    first = text(3)
    second = changed(first, 70)
    third = [f"{word}y" if index % 70 == 3 else word for index, word in enumerate(second)]
    assert jaccard(first, second) > 0.82 > 0.78 > jaccard(first, third)
    deduplicator = Deduplicator(0.8)
    verdicts = [check(deduplicator, " ".join(words)) for words in (first, second, third)]
    assert verdicts == [None, "near_duplicate", None]


def test_the_same_texts_get_the_same_verdicts() -> None:
    texts = [" ".join(changed(text(seed % 30), 9 + seed % 90)) for seed in range(90)]
    runs = [[check(deduplicator, item) for item in texts] for deduplicator in (Deduplicator(0.7), Deduplicator(0.7))]
    assert runs[0] == runs[1] and "near_duplicate" in runs[0]


def test_short_and_empty_texts_are_told_apart() -> None:
    deduplicator = Deduplicator(0.8)
    assert [check(deduplicator, item) for item in ("one", "two", "one two", "two one", "two  one")] == [
        None,
        None,
        None,
        None,
        "exact_duplicate",
    ]


def test_shingles_depend_on_the_order_of_words_and_are_bounded() -> None:
    words = text(5, 20_000)
    hashes = shingle_hashes(words)
    assert len(hashes) == MAX_SHINGLES and (np.diff(hashes.astype(np.int64)) > 0).all()
    assert not set(shingle_hashes(["a", "b", "c", "d", "e"])) & set(shingle_hashes(["e", "d", "c", "b", "a"]))


def test_a_thousand_documents_of_two_kilobytes_take_a_moment() -> None:
    texts = [" ".join(text(seed, 300)) for seed in range(1_000)]
    started = time.process_time()
    deduplicator = Deduplicator(0.8)
    assert all(check(deduplicator, item) is None for item in texts)
    assert time.process_time() - started < 4


def test_what_is_remembered_is_known_like_what_was_checked() -> None:
    first, second = Deduplicator(0.8), Deduplicator(0.8)
    for words in (text(1), text(2)):
        assert check(first, " ".join(words)) is None
        second.remember(fingerprint(" ".join(words), near=True))
    later = [" ".join(words) for words in (text(1), changed(text(2), 100), text(3), changed(text(1), 14))]
    verdicts = [check(first, item) for item in later]
    assert verdicts == [check(second, item) for item in later] == ["exact_duplicate", "near_duplicate", None, None]
