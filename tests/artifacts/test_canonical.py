"""Canonical JSON: same value, same bytes; everything unstable refused where it stands."""

from __future__ import annotations

import json
import math
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from artifacts.canonical import CanonicalError, canonical_json, digest

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3), max_leaves=8
)


@given(VALUES)
def test_reading_back_gives_the_value_and_writing_again_the_same_bytes(value):
    data = canonical_json(value)
    assert json.loads(data) == value
    assert canonical_json(json.loads(data)) == data


@given(st.dictionaries(TEXT, SCALARS, min_size=2, max_size=6))
def test_the_order_of_insertion_does_not_matter(value):
    assert digest({"a": dict(reversed(value.items()))}) == digest({"a": value})


@given(VALUES, VALUES)
def test_different_json_has_different_bytes(left, right):
    same = json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    assert (canonical_json(left) == canonical_json(right)) == same


def test_text_is_utf8_and_nothing_is_padded():
    assert canonical_json({"b": [1, 2.5], "a": "→"}) == '{"a":"→","b":[1,2.5]}'.encode()


def test_tuples_and_read_only_mappings_are_plain_data():
    assert canonical_json(MappingProxyType({"a": (1, (2,))})) == b'{"a":[1,[2]]}'


class Level(IntEnum):
    LOW = 1


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"lr": {"max": math.nan}}, "value.lr.max"),
        ({"a": [1.0, math.inf]}, "value.a[1]"),
        ({"a": {1, 2}}, "value.a is a set"),
        ({"a": {1: 2}}, "value.a has the key 1"),
        ({"path": Path("x")}, "value.path"),
        ([object()], "value[0] is a object"),
        ({"f": len}, "value.f"),
        ({"level": Level.LOW}, "value.level is a Level"),
        ({"b": b"x"}, "value.b is a bytes"),
        ({"s": "\ud800"}, "value.s"),
    ],
)
def test_what_has_no_canonical_form_is_refused_by_path(value, where):
    with pytest.raises(CanonicalError) as caught:
        canonical_json(value)
    assert where in str(caught.value)
    assert "\n" not in str(caught.value)
