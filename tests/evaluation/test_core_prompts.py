"""CORE's prompts: the examples, the texts and the scored tokens, against a second writing of each and at the edges."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.evaluation.core.bundle import CoreTask, Item, TaskType
from nanocode.evaluation.core.prompts import Prompt, common_length, examples_of, prompts_of, texts_of

BOS = 1_000


def task(kind: TaskType, items: list[Item], shots: int = 0, delimiter: str = " ") -> CoreTask:
    return CoreTask("t", kind, shots, delimiter, 0.0, tuple(items), Path("t.jsonl"))


def choice(query: str, *choices: str, gold: int = 0) -> Item:
    return Item(tuple((query, each) for each in choices), gold)


def characters(text: str) -> list[int]:
    """A tokenizer that never merges."""
    return [ord(character) for character in text]


def pairs(text: str) -> list[int]:
    """A tokenizer that merges every two characters from the left, so that a text's end decides about its middle."""
    return [hash_of(text[start : start + 2]) for start in range(0, len(text), 2)]


def hash_of(piece: str) -> int:
    return sum(ord(character) * 131**place for place, character in enumerate(piece)) % 997


def answer(prompt: Prompt) -> str:
    """What is scored, where ids are characters."""
    return "".join(map(chr, prompt.ids[prompt.start :]))


@given(st.integers(1, 60), st.integers(0, 12), st.data())
def test_examples_are_drawn_from_all_other_rows_as_everybody_draws_them(
    count: int, shots: int, data: st.DataObject
) -> None:
    shots = min(shots, count - 1)
    index = data.draw(st.integers(0, count - 1))
    items = [choice(f"q{number}", "a", "b") for number in range(count)]
    others = [number for number in range(count) if number != index]
    expected = random.Random(1234 + index).sample(others, shots)
    assert examples_of(task("multiple_choice", items, shots), index) == [items[number] for number in expected]


def test_examples_stand_solved_before_the_question_one_blank_line_apart() -> None:
    items = [choice(f"q{number}", "yes", "no", gold=number % 2) for number in range(3)]
    asked = task("multiple_choice", items, 2, "\nAnswer: ")
    solved = {"q1": "q1\nAnswer: no", "q2": "q2\nAnswer: yes"}
    shown = [solved[item.options[0][0]] for item in examples_of(asked, 0)]
    assert texts_of(asked, 0) == ["\n\n".join([*shown, f"q0\nAnswer: {word}"]) for word in ("yes", "no")]


def test_of_choices_that_is_scored_in_which_they_differ() -> None:
    asked = task("multiple_choice", [choice("Is it", "red wine", "red ink", "rose")])
    prompts = prompts_of(asked, 0, characters, BOS, 100)
    assert [answer(prompt) for prompt in prompts] == ["ed wine", "ed ink", "ose"]
    assert all(prompt.ids[0] == BOS and not prompt.cut for prompt in prompts)


def test_of_a_schema_that_is_scored_which_all_options_end_in() -> None:
    item = Item((("The cup, for it", "is small"), ("The big suitcase, for it", "is small")), 1)
    prompts = prompts_of(task("schema", [item]), 0, characters, BOS, 100)
    assert [answer(prompt) for prompt in prompts] == [", for it is small"] * 2


def test_of_language_the_continuation_is_scored() -> None:
    (prompt,) = prompts_of(task("language_modeling", [Item((("one, two,", "three"),), 0)]), 0, characters, BOS, 100)
    assert answer(prompt) == " three"


def test_a_continuation_that_merges_with_the_token_before_it_is_scored_with_it() -> None:
    """nanochat ends with an assertion here: its prompt is no prefix of the whole."""
    odd = task("language_modeling", [Item((("abc", "de"),), 0)], delimiter="")
    (prompt,) = prompts_of(odd, 0, pairs, BOS, 100)
    assert prompt.ids.tolist() == [BOS, *pairs("abcde")] and pairs("abc") != pairs("abcde")[:2]
    assert prompt.start == 2  # behind BOS and "ab": "cd" holds the first letter of the answer


def test_an_option_that_begins_another_is_scored_all_the_same() -> None:
    """nanochat takes the mean of no losses here, which is no number."""
    prompts = prompts_of(task("multiple_choice", [choice("q", "ab", "abc", "ab")]), 0, characters, BOS, 100)
    assert [answer(prompt) for prompt in prompts] == ["b", "bc", "b"]


def test_options_that_are_all_the_same_keep_one_token() -> None:
    same = Item((("x", "y"), ("x", "y")), 0)
    for kind in ("multiple_choice", "schema"):
        for prompt in prompts_of(task(kind, [same]), 0, characters, BOS, 100):
            assert 1 <= prompt.start < len(prompt.ids)


@pytest.mark.parametrize(
    ("context_tokens", "kept", "scored"),
    [(9, "e two end", "end"), (4, " end", "end"), (3, "end", "nd"), (2, "nd", "d")],
)
def test_what_is_too_long_loses_its_beginning_and_keeps_its_answer(context_tokens: int, kept: str, scored: str) -> None:
    asked = task("multiple_choice", [choice("one two", "end", "out")])
    prompt = prompts_of(asked, 0, characters, BOS, context_tokens)[0]
    assert prompt.cut and "".join(map(chr, prompt.ids)) == kept
    assert answer(prompt) == scored


@given(
    st.sampled_from(["multiple_choice", "schema"]),
    st.lists(st.text("ab ", min_size=1, max_size=6), min_size=2, max_size=4),
    st.sampled_from([characters, pairs]),
    st.integers(2, 12),
)
def test_every_answer_has_a_token_and_one_before_it(kind: TaskType, texts: list[str], encode, context: int) -> None:
    options = [("ab", text) if kind == "multiple_choice" else (text, "ab") for text in texts]
    prompts = prompts_of(task(kind, [Item(tuple(options), 0)]), 0, encode, BOS, context)
    for prompt, whole in zip(prompts, texts_of(task(kind, [Item(tuple(options), 0)]), 0), strict=True):
        ids = [BOS, *encode(whole)]
        assert prompt.ids.tolist() == ids[-context:] and prompt.cut == (len(ids) > context)
        assert 1 <= prompt.start < len(prompt.ids)


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1, max_size=4))
def test_common_length_is_that_of_the_longest_shared_beginning(rows: list[list[int]]) -> None:
    found = common_length([np.array(row, np.int32) for row in rows])
    assert all(row[:found] == rows[0][:found] for row in rows)
    assert any(row[: found + 1] != rows[0][: found + 1] or len(row) == found for row in rows)
