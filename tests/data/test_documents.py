"""The admission filter and the stable order."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.data.documents import Document, RawDocument, admit, stable_order


def verdict(content: bytes | str, fault: str | None = None) -> Document | str:
    return admit(RawDocument(content, "a.txt", "MIT", "a.txt", fault), min_bytes=4, max_bytes=100)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"caf\xe9 au lait", "not_utf8"),
        ("a lone surrogate \ud800", "not_utf8"),
        (b"text with a \0 in it", "binary"),
        (b"\x01\x02\x03\x04 mostly control", "binary"),
        (b"", "empty"),
        (" \n\t\n ", "empty"),
        ("abc", "too_short"),
        ("x" * 101, "too_long"),
        ("é" * 51, "too_long"),
    ],
)
def test_what_cannot_be_trained_on_is_named(content: bytes | str, reason: str) -> None:
    assert verdict(content) == reason


def test_a_fault_of_the_source_is_the_reason() -> None:
    assert verdict("fine text", fault="unparsable") == "unparsable"


def test_text_passes_byte_for_byte() -> None:
    text = "line one\r\n\tline two  \n\n\x1b[1mbold\x1b[0m, a few words more\n"
    admitted = verdict(text)
    assert isinstance(admitted, Document) and admitted.text == text


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    admitted = verdict(b"\xef\xbb\xbfsome text")
    assert isinstance(admitted, Document) and admitted.text == "some text"


@given(st.binary(max_size=60))
def test_no_bytes_crash_the_filter(content: bytes) -> None:
    outcome = verdict(content)
    assert isinstance(outcome, str) or outcome.text.encode("utf-8") in (content, content.removeprefix(b"\xef\xbb\xbf"))


@given(st.lists(st.text(max_size=5), unique=True), st.randoms(use_true_random=False))
def test_the_order_ignores_how_the_names_came_in(names: list[str], shuffler: random.Random) -> None:
    shuffled = list(names)
    shuffler.shuffle(shuffled)
    assert stable_order(names, str) == stable_order(shuffled, str)


def test_the_head_of_the_order_samples_the_whole() -> None:
    names = [f"{letter}/{number}" for letter in "abcdefghij" for number in range(100)]
    head = stable_order(names, str)[:200]
    assert {name[0] for name in head} == set("abcdefghij")
