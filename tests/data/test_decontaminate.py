"""A planted leak is found with the share of the item that it covers; ordinary text is not."""

from __future__ import annotations

import random
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.decontaminate import EvaluationItem, OverlapIndex, items_digest

RANDOM = random.Random(0)


def words(count: int) -> list[str]:
    return [f"w{RANDOM.randrange(10_000)}" for _ in range(count)]


def test_a_planted_leak_is_covered_to_one_whatever_its_case_and_layout() -> None:
    items = [EvaluationItem(f"set#{number}", " ".join(words(40))) for number in range(50)]
    index = OverlapIndex(items)
    leaked = re.sub(r" ", "\n  ", items[7].text).upper() + "!"
    document = " ".join(words(500)) + "\n" + leaked + "\n" + " ".join(words(500))
    [overlap] = index.overlaps(document)
    assert (overlap.item, overlap.coverage) == ("set#7", 1.0)
    assert overlap.span == " ".join(items[7].text.split()[:13])
    assert index.overlaps(" ".join(words(2_000))) == []


def test_coverage_is_the_share_of_the_items_words_in_common_runs() -> None:
    item = words(100)
    index = OverlapIndex([EvaluationItem("a", " ".join(item))])
    document = [*words(50), *item[10:30], *words(50), *item[60:73], "x", *item[80:92]]
    [overlap] = index.overlaps(" ".join(document))
    assert overlap.coverage == pytest.approx((20 + 13) / 100), "twelve words in common are no run"
    assert overlap.span == " ".join(item[10:23])


def test_short_items_are_compared_whole_and_the_shortest_not_at_all() -> None:
    ten, seven = " ".join(words(10)), " ".join(words(7))
    index = OverlapIndex([EvaluationItem("ten", ten), EvaluationItem("seven", seven)])
    assert (index.checked, index.unchecked) == (1, ["seven"])
    assert [overlap.item for overlap in index.overlaps(f"a {ten} b {seven} c")] == ["ten"]
    assert index.overlaps(" ".join(ten.split()[:9])) == []


def test_one_run_may_belong_to_many_items_and_the_most_covered_comes_first() -> None:
    shared = words(20)
    items = [EvaluationItem("long", " ".join(shared + words(60))), EvaluationItem("short", " ".join(shared + words(5)))]
    overlaps = OverlapIndex(items).overlaps(" ".join(shared))
    assert [(overlap.item, overlap.coverage) for overlap in overlaps] == [("short", 20 / 25), ("long", 20 / 80)]


def reference(item: list[str], document: list[str], width: int) -> float:
    """Coverage by comparing every run with every run."""
    runs = {tuple(document[at : at + width]) for at in range(len(document) - width + 1)}
    covered = {
        place
        for at in range(len(item) - width + 1)
        if tuple(item[at : at + width]) in runs
        for place in range(at, at + width)
    }
    return len(covered) / len(item)


@given(
    st.lists(st.sampled_from("abc"), min_size=4, max_size=30), st.lists(st.sampled_from("abc"), min_size=1, max_size=60)
)
def test_coverage_equals_that_of_an_exhaustive_comparison(item: list[str], document: list[str]) -> None:
    index = OverlapIndex([EvaluationItem("x", " ".join(item))], words=5, min_words=4)
    found = index.overlaps(" ".join(document))
    assert (found[0].coverage if found else 0) == pytest.approx(reference(item, document, min(5, len(item))))


@given(st.text(max_size=80))
def test_no_text_crashes_the_index(text: str) -> None:
    index = OverlapIndex([EvaluationItem("x", text), EvaluationItem("y", "one two three four")], words=3, min_words=1)
    assert all(0 < overlap.coverage <= 1 for overlap in index.overlaps(text + " one two three four"))


def test_an_empty_set_and_one_of_short_items_find_nothing() -> None:
    assert OverlapIndex([]).overlaps("any text at all") == []
    assert OverlapIndex([EvaluationItem("x", "few words")]).overlaps("few words") == []


def test_widths_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"min_words \(9\) must not exceed words \(5\)"):
        OverlapIndex([], words=5, min_words=9)


def test_the_digest_pins_names_texts_and_order() -> None:
    one, two = EvaluationItem("a", "b"), EvaluationItem("c", "d")
    digests = {
        items_digest(items) for items in ([one, two], [two, one], [one], [EvaluationItem("ab", ""), two], [two, two])
    }
    assert len(digests) == 5 and items_digest([one, two]) == items_digest([one, two])
