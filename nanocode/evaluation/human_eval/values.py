"""Plain values as one line of JSON: what passes between the tests of a problem and the code under test.

Numbers, text, bytes and Python's own containers of them arrive as they were; an instance of a class derived from one of
these arrives as that one. Anything else arrives as an `Opaque`, which equals nothing but itself: no class of the code
under test, and none of its methods, reaches the tests. Runs inside the sandbox on the standard library alone.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator
from decimal import Decimal
from fractions import Fraction
from itertools import islice
from typing import Any

MAX_ITEMS = 1_000_000
MAX_DEPTH = 200
# Larger ones take their digits in base 16, because Python bounds how long a decimal number may be.
_SMALL = 1 << 53


class ValuesError(ValueError):
    """A line that is no plain value."""


class Opaque:
    """What a value of no plain type looks like from the other side."""

    def __init__(self, type_name: str) -> None:
        self.type_name = type_name

    def __repr__(self) -> str:
        return f"<a {self.type_name}>"


def encode(value: object) -> str:
    """One line of ASCII."""
    return json.dumps(_plain(value, 0))


def decode(line: str | bytes) -> Any:
    """The value in a line. Raises ValuesError."""
    try:
        return _value(json.loads(line))
    except (ValueError, TypeError, LookupError, ArithmeticError, RecursionError) as error:
        raise ValuesError(f"no plain value: {type(error).__name__}") from None


def _plain(value: Any, depth: int) -> Any:
    if value is None or value is True or value is False:
        return value
    if depth > MAX_DEPTH:
        return ["other", "value that is too deep"]
    for kind, name, parts in _KINDS:
        if isinstance(value, kind):
            return _scalar(value, kind) if parts is None else [name, _parts(parts(value), depth + 1)]
    return ["other", type(value).__name__]


def _scalar(value: Any, kind: type) -> Any:
    """Numbers and text, which JSON has."""
    if kind is int:
        return int(value) if -_SMALL < value < _SMALL else ["int", hex(value)]
    return kind(value)


def _parts(values: Iterator[Any], depth: int) -> list[Any]:
    parts = [_plain(value, depth) for value in islice(values, MAX_ITEMS + 1)]
    return parts if len(parts) <= MAX_ITEMS else [["other", "value that is too long"]]


def _pairs(value: Any) -> Iterator[Any]:
    return (part for pair in value.items() for part in pair)


# The first type that fits decides. None: a scalar. An iterator ends where it is looked at, and so does its line.
_KINDS: tuple[tuple[type, str, Callable[[Any], Iterator[Any]] | None], ...] = (
    (int, "int", None),
    (float, "float", None),
    (str, "str", None),
    (list, "list", iter),
    (tuple, "tuple", iter),
    (dict, "dict", _pairs),
    (set, "set", iter),
    (frozenset, "frozenset", iter),
    (bytes, "bytes", lambda value: iter((bytes(value).hex(),))),
    (bytearray, "bytearray", lambda value: iter((bytes(value).hex(),))),
    (complex, "complex", lambda value: iter((value.real, value.imag))),
    (range, "range", lambda value: iter((value.start, value.stop, value.step))),
    (Fraction, "Fraction", lambda value: iter((value.numerator, value.denominator))),
    (Decimal, "Decimal", lambda value: iter((str(value),))),
    (deque, "deque", iter),
    (type({}.keys()), "dict_keys", iter),
    (type({}.values()), "dict_values", iter),
    (type({}.items()), "dict_items", iter),
    (Iterator, "iterator", iter),
)

_MAKERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "dict": lambda parts: dict(zip(parts[::2], parts[1::2], strict=True)),
    "set": set,
    "frozenset": frozenset,
    "bytes": lambda parts: bytes.fromhex(parts[0]),
    "bytearray": lambda parts: bytearray.fromhex(parts[0]),
    "complex": lambda parts: complex(*parts),
    "range": lambda parts: range(*parts),
    "Fraction": lambda parts: Fraction(*parts),
    "Decimal": lambda parts: Decimal(parts[0]),
    "deque": deque,
    "dict_keys": lambda parts: dict.fromkeys(parts).keys(),
    "dict_values": lambda parts: dict(enumerate(parts)).values(),
    "dict_items": lambda parts: dict(parts).items(),
    "iterator": iter,
}


def _value(plain: Any) -> Any:
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    name, content = plain
    if name == "other":
        return Opaque(str(content))
    if name == "int":
        return int(content, 16)
    return _MAKERS[name]([_value(part) for part in content])
