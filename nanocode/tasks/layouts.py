"""Layouts of the small modules that tasks look into.

A layout is a short word, one letter a block: ``c`` constant, ``f`` function, ``m`` method in a class of its own, ``#``
comment, ``i`` import, ``_`` blank line. The wanted constant or function takes a random place among its kind, so that
nothing but the content of a line tells which one is asked for.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from nanocode.tasks.family import Phrasing, function_source
from nanocode.tasks.words import Names

# None of these is a module that a task asks to import.
_IMPORTS = ("bisect", "copy", "heapq", "queue", "string", "types", "uuid")
_COMMENTS = ("code", "data", "rules", "numbers")


@dataclass(frozen=True)
class Layouts:
    """The layouts a family trains on, and the one that goes with its held-out phrasing."""

    trained: tuple[str, ...]
    held_out: str

    def draw(self, phrasing: Phrasing, rng: random.Random) -> str:
        return self.held_out if phrasing.held_out else rng.choice(self.trained)


# Constants and functions in any order: what `read`, `edit` and `insert` search by eye.
MIXED = Layouts(("c_f", "f_c", "ic_f", "f_c_f", "#_c_f", "cc_f"), held_out="i_f_c")


def module_text(layout: str, names: Names, rng: random.Random, row: str = "", function: str = "") -> str:
    """A module in this layout that holds `row` and `function` (source text, each optional) among others like them."""
    rows = _mixed(row, layout.count("c"), lambda: f"{names.constant()} = {names.value()}\n", rng)
    functions = _mixed(function, layout.count("f") + layout.count("m"), lambda: _any_function(names, rng), rng)
    blocks: Mapping[str, Callable[[], str]] = {
        "c": rows.pop,
        "f": functions.pop,
        "m": lambda: f"class {names.path()[:-3].title()}:\n{as_method(functions.pop())}",
        "#": lambda: f"# {names.path()[:-3]} {rng.choice(_COMMENTS)}\n",
        "i": lambda: f"import {rng.choice(_IMPORTS)}\n",
        "_": lambda: "\n",
    }
    return "".join(blocks[letter]() for letter in layout)


def as_method(function: str) -> str:
    """The source of a function, indented, with ``self``."""
    head, *body = function.splitlines()
    head = head.replace("()", "(self)").replace("(n)", "(self, n)")
    return "".join(f"    {line}\n" for line in (head, *body))


def _any_function(names: Names, rng: random.Random) -> str:
    return function_source(names.function(), f"n {rng.choice('+*')} {names.value()}")


def _mixed(wanted: str, count: int, other: Callable[[], str], rng: random.Random) -> list[str]:
    """`count` texts in random order, `wanted` among them unless it is empty."""
    texts = [wanted] if wanted else []
    texts += [other() for _ in range(count - len(texts))]
    rng.shuffle(texts)
    return texts
