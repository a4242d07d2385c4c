"""Mutations: small changes of text, each of its kind, each still Python."""

from __future__ import annotations

import ast
import difflib

import pytest

from nanocode.evaluation.micro_swe.mutations import KINDS, mutations

SOURCE = '''def price(amount, percent=10, name="x", whole=True):
    """The price - with 10 % or more taken off."""
    # 5 < 6 stays as it is
    if whole and amount > 0:
        amount -= amount * percent // 100
    for index in range(amount):
        amount = max(amount, index + 1)
    return f"{amount + 1}" if not whole else amount
'''


def changes(kind: str) -> set[tuple[str, str]]:
    return {(SOURCE[each.start : each.end], each.text) for each in mutations(SOURCE) if each.kind == kind}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("off_by_one", {("0", "1"), ("100", "99"), ("100", "101"), ("1", "0"), ("1", "2"), ("amount", "amount - 1")}),
        (
            "wrong_operator",
            {
                ("and", "or"),
                (">", ">="),
                (">", "<"),
                ("-=", "+="),
                ("*", "+"),
                ("*", "//"),
                ("//", "*"),
                ("//", "%"),
                ("+", "-"),
            },
        ),
        (
            "missing_return",
            {('return f"{amount + 1}" if not whole else amount', 'f"{amount + 1}" if not whole else amount')},
        ),
        ("wrong_default", {("10", "11"), ("10", "100"), ('"x"', '""'), ("True", "False")}),
        ("swapped_arguments", {("amount, index + 1", "index + 1, amount")}),
        ("inverted_condition", {("whole and amount > 0", "not (whole and amount > 0)"), ("not whole", "whole")}),
    ],
)
def test_each_kind_changes_what_its_name_says_and_no_text(kind: str, expected: set[tuple[str, str]]) -> None:
    assert changes(kind) == expected


def test_a_wrong_variable_is_another_parameter() -> None:
    found = changes("wrong_variable")
    assert ("amount", "percent") in found and ("whole", "name") in found
    assert {name for pair in found for name in pair} == {"amount", "percent", "name", "whole"}
    assert all(before != after for before, after in found)


def test_every_mutant_is_python_and_differs_in_one_line() -> None:
    found = mutations(SOURCE)
    assert {each.kind for each in found} == set(KINDS)
    for each in found:
        ast.parse(each.source)
        lines = difflib.ndiff(SOURCE.splitlines(), each.source.splitlines())
        assert sum(line.startswith("+ ") for line in lines) == 1
        assert each.source == SOURCE[: each.start] + each.text + SOURCE[each.end :]
    assert len({each.source for each in found}) == len(found)


def test_the_order_is_that_of_the_text() -> None:
    assert mutations(SOURCE) == mutations(SOURCE)
    assert [each.start for each in mutations(SOURCE)] == sorted(each.start for each in mutations(SOURCE))


def test_what_cannot_be_mutated_is_refused() -> None:
    with pytest.raises(SyntaxError):
        mutations("def broken(:\n")
    with pytest.raises(ValueError, match="ASCII"):
        mutations('def f():\n    return "é"\n')
    assert mutations("x = 1\n") == []
