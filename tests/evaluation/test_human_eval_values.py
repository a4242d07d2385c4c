from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from contextlib import suppress
from enum import IntEnum
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanocode.evaluation.human_eval import values
from nanocode.evaluation.human_eval.values import Opaque, ValuesError, decode, encode

SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(st.characters(codec=None)),
    st.binary(max_size=8),
    st.complex_numbers(allow_nan=False),
    st.fractions(),
    st.decimals(allow_nan=False),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(SCALARS, inner, max_size=3),
        st.sets(SCALARS, max_size=3),
        st.frozensets(SCALARS, max_size=3),
    ),
)


@given(VALUES)
def test_plain_values_arrive_as_they_were(value: Any) -> None:
    line = encode(value)
    assert line.isascii() and "\n" not in line
    assert decode(line) == value
    assert type(decode(line)) is type(value)


ODD = [2**53, -(2**53), 10**5000, 5e-324, math.inf, "\ud800", range(3, 9, 2), deque([1]), bytearray(b"a"), True]


@pytest.mark.parametrize("value", ODD, ids=[str(number) for number in range(len(ODD))])
def test_so_do_the_odd_ones(value: Any) -> None:
    assert decode(encode(value)) == value
    assert type(decode(encode(value))) is type(value)


def test_what_is_no_number_stays_so() -> None:
    assert math.isnan(decode(encode(math.nan)))


def test_true_and_one_are_told_apart() -> None:
    assert decode(encode([True, 1, 1.0])) == [True, 1, 1.0]
    assert [type(each) for each in decode(encode([True, 1, 1.0]))] == [bool, int, float]


class Colour(IntEnum):
    RED = 3


class Loud(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (Colour.RED, 3),
        (Loud("a"), "a"),
        (Counter("aab"), {"a": 2, "b": 1}),
        (OrderedDict(b=1), {"b": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (namedtuple("Point", "x y")(1, 2), (1, 2)),
    ],
)
def test_a_derived_class_arrives_as_the_one_it_derives_from(value: Any, plain: Any) -> None:
    found = decode(encode(value))
    assert type(found) is type(plain) and found == plain


def test_iterators_and_views_arrive_as_such() -> None:
    assert list(decode(encode(number for number in range(3)))) == [0, 1, 2]
    assert decode(encode({"a": 1}.keys())) == {"a"}
    assert list(decode(encode({"a": 1}.values()))) == [1]
    assert decode(encode({"a": 1}.items())) == {("a", 1)}


@pytest.mark.parametrize("value", [object(), len, Loud, open, {1: object()}[1], ValueError("x")])
def test_anything_else_equals_nothing(value: Any) -> None:
    found = decode(encode(value))
    assert isinstance(found, Opaque)
    assert found != value and found != decode(encode(value)) and bool(found)


def test_a_list_that_holds_itself_and_one_without_end_are_no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "MAX_ITEMS", 1_000)
    loop: list[Any] = []
    loop.append(loop)
    assert decode(encode(loop)) != loop
    assert isinstance(next(iter(decode(encode(iter(int, 1))))), Opaque)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "{}",
        "[]",
        '["list"]',
        '["list", 3]',
        '["nothing", []]',
        '["int", "zz"]',
        '["dict", [1]]',
        '["set", [["list", []]]]',
        '["Fraction", [1, 0]]',
        '["range", [1, 2, 0]]',
        '["bytes", []]',
        '["Decimal", ["x"]]',
        '["complex", ["a", "b"]]',
        '[["list"], []]',
        '{"a": 1, "b": 2}',
        "1" * 5_000,
        "[" * 100_000,
        b"\xff",
    ],
)
def test_a_line_that_is_no_value_is_an_error(line: str | bytes) -> None:
    with pytest.raises(ValuesError, match="no plain value"):
        decode(line)


@given(st.recursive(st.one_of(st.none(), st.integers(), st.text()), lambda inner: st.lists(inner, max_size=3)))
def test_any_json_is_a_value_or_an_error(plain: Any) -> None:
    with suppress(ValuesError):
        decode(json.dumps(plain))
