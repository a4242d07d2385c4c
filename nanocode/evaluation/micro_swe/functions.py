"""The functions that micro-SWE's repositories are made of: right as they stand, each with inputs that show it.

`$name` in a source is a number that a repository draws for itself from `numbers`. No function loops without a bound, so
that no mutation of one can run forever, and none has a name that a task family could draw.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Function:
    """`inputs` are tuples of arguments; `uses` names functions of other modules that it calls."""

    module: str
    source: str
    inputs: tuple[tuple[Any, ...], ...]
    uses: tuple[str, ...] = ()
    numbers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        found = re.match(r"def (\w+)\(", self.source)
        assert found is not None, f"not a function: {self.source[:40]!r}"
        return found.group(1)


_LIST = (
    Function(
        "limits",
        '''def clamp(value, low, high):
    """The value, or the end of low..high that it lies beyond."""
    if value < low:
        return low
    if value > high:
        return high
    return value
''',
        ((5, 1, 9), (0, 1, 9), (12, 1, 9), (9, 1, 9)),
    ),
    Function(
        "limits",
        '''def overlap(start, end, other_start, other_end):
    """How many whole numbers two ranges share; the ends are not part of them."""
    return max(0, min(end, other_end) - max(start, other_start))
''',
        ((0, 5, 3, 9), (0, 5, 5, 9), (2, 8, 3, 4), (0, 2, 6, 9)),
    ),
    Function(
        "limits",
        '''def inside(value, low, high):
    """Whether low <= value < high."""
    return low <= value and value < high
''',
        ((3, 1, 5), (1, 1, 5), (5, 1, 5), (0, 1, 5)),
    ),
    Function(
        "pricing",
        '''def discounted(price, percent):
    """The price in cents with some percent taken off, never below 0."""
    return clamp(price - price * percent // 100, 0, price)
''',
        ((200, 25), (999, 10), (50, 0), (80, 120)),
        ("clamp",),
    ),
    Function(
        "pricing",
        '''def shipping(weight, rate=$rate):
    """Cents for a parcel: the rate for each kilogram that is begun, and nothing for an empty one."""
    if weight == 0:
        return 0
    kilograms = (weight + 999) // 1000
    return kilograms * rate
''',
        ((1500,), (0,), (1000, 7), (2001, 3)),
        numbers={"rate": (120, 250, 390)},
    ),
    Function(
        "pricing",
        '''def invoice(prices, percent):
    """The sum of the prices with their tax, in cents."""
    net = sum(prices)
    return net + net * percent // 100
''',
        (([100, 250], 20), ([], 20), ([999], 7), ([10, 20, 30], 0)),
    ),
    Function(
        "pricing",
        '''def coins(amount, sizes):
    """How many coins of each size make up the amount, largest first."""
    counts = []
    for size in sizes:
        counts.append(amount // size)
        amount = amount % size
    return counts
''',
        ((87, [50, 20, 10, 5, 2, 1]), (40, [20, 10]), (0, [5, 1])),
    ),
    Function(
        "marks",
        '''def average(marks):
    """The mean of the marks, rounded down; 0 without any."""
    if not marks:
        return 0
    return sum(marks) // len(marks)
''',
        (([70, 80, 91],), ([],), ([55],), ([1, 2],)),
    ),
    Function(
        "marks",
        '''def letter(mark):
    """A from 90, B from 75, C from $least, F below."""
    if mark >= 90:
        return "A"
    if mark >= 75:
        return "B"
    if mark >= $least:
        return "C"
    return "F"
''',
        ((95,), (90,), (75,), (74,), (60,), (12,)),
        numbers={"least": (50, 55, 60)},
    ),
    Function(
        "marks",
        '''def passing(marks, least=$least):
    """The names whose mark is at least so high, in order."""
    return sorted(name for name, mark in marks.items() if mark >= least)
''',
        (({"ann": 70, "bo": 40, "cy": 50},), ({"ann": 70, "bo": 71}, 71), ({},)),
        numbers={"least": (50, 60, 70)},
    ),
    Function(
        "marks",
        '''def ranks(marks):
    """The place of each mark, 1 for the highest; equal marks share one."""
    return [1 + sum(other > mark for other in marks) for mark in marks]
''',
        (([70, 90, 80],), ([5, 5, 9],), ([],)),
    ),
    Function(
        "wording",
        '''def shorten(text, width=$width, ending=".."):
    """The text, cut to the width with an ending in the place of what is missing."""
    if len(text) <= width:
        return text
    return text[: width - len(ending)] + ending
''',
        (("a rather long line",), ("short", 10), ("exactly", 7), ("longer than", 6)),
        numbers={"width": (8, 12)},
    ),
    Function(
        "wording",
        '''def initials(name, separator="."):
    """The first letter of each word in capitals, each followed by the separator."""
    letters = [word[0].upper() for word in name.split()]
    return separator.join(letters) + separator
''',
        (("ada lovelace",), ("grace brewster hopper",), ("ada lovelace", "-")),
    ),
    Function(
        "wording",
        '''def vowels(text):
    """How many of the letters are vowels."""
    count = 0
    for letter_seen in text.lower():
        if letter_seen in "aeiou":
            count += 1
    return count
''',
        (("banana",), ("RHYTHM",), ("Education",), ("",)),
    ),
    Function(
        "wording",
        '''def plural(count, word, ending="s"):
    """The count and the word, with the ending unless there is one."""
    if count == 1:
        return f"{count} {word}"
    return f"{count} {word}{ending}"
''',
        ((1, "file"), (0, "file"), (3, "box", "es")),
    ),
    Function(
        "grids",
        '''def steps_between(row, column, other_row, other_column):
    """Steps along the grid from one cell to another."""
    return abs(row - other_row) + abs(column - other_column)
''',
        ((0, 0, 2, 3), (4, 1, 1, 5), (2, 2, 2, 2)),
    ),
    Function(
        "grids",
        '''def neighbours(row, column, height, width):
    """How many cells of the grid touch this one along an edge."""
    around = [(row - 1, column), (row + 1, column), (row, column - 1), (row, column + 1)]
    return sum(inside(y, 0, height) and inside(x, 0, width) for y, x in around)
''',
        ((0, 0, 3, 4), (1, 1, 3, 4), (2, 3, 3, 4), (0, 2, 1, 4)),
        ("inside",),
    ),
    Function(
        "grids",
        '''def diagonal(rows):
    """The sum from the upper left to the lower right."""
    total = 0
    for index in range(len(rows)):
        total += rows[index][index]
    return total
''',
        (([[1, 2], [3, 4]],), ([[5]],), ([[1, 0, 2], [0, 2, 0], [3, 0, 4]],)),
    ),
    Function(
        "grids",
        '''def cell_number(row, column, width):
    """The place of a cell when cells are counted row by row, from 0."""
    return row * width + column
''',
        ((0, 0, 4), (2, 1, 4), (1, 3, 5)),
    ),
    Function(
        "clocks",
        '''def to_minutes(hours, minutes):
    """Minutes since midnight."""
    return hours * 60 + minutes
''',
        ((0, 0), (7, 30), (23, 59)),
    ),
    Function(
        "clocks",
        '''def minutes_between(hours, minutes, later_hours, later_minutes):
    """Minutes from one time of day to a later one, past midnight if need be."""
    return (to_minutes(later_hours, later_minutes) - to_minutes(hours, minutes)) % 1440
''',
        ((8, 15, 9, 0), (23, 50, 0, 10), (12, 0, 12, 0)),
        ("to_minutes",),
    ),
    Function(
        "clocks",
        '''def shown(minutes, separator=":"):
    """A time of day such as 07:05 from the minutes since midnight."""
    return f"{minutes // 60:02}{separator}{minutes % 60:02}"
''',
        ((425,), (0,), (1439,), (61, "h")),
    ),
    Function(
        "clocks",
        '''def leap(year):
    """Whether the year has 366 days."""
    if year % 100 == 0:
        return year % 400 == 0
    return year % 4 == 0
''',
        ((2024,), (2023,), (1900,), (2000,)),
    ),
    Function(
        "stock",
        '''def remaining(stock, sold):
    """What is left of each item; what was never in stock is not counted."""
    return {item: count - sold.get(item, 0) for item, count in stock.items()}
''',
        (({"pen": 5, "cup": 2}, {"pen": 3}), ({"pen": 5}, {"cup": 1}), ({}, {"pen": 1})),
    ),
    Function(
        "stock",
        '''def reorder(stock, least=$least):
    """The items of which fewer than so many are left, in order."""
    return sorted(item for item, count in stock.items() if count < least)
''',
        (({"pen": 5, "cup": 2, "mug": 9},), ({"pen": 5, "cup": 4}, 5), ({},)),
        numbers={"least": (3, 6, 9)},
    ),
    Function(
        "stock",
        '''def best_seller(sold):
    """The item that was sold most often, the first in order among equals; "" when nothing was."""
    best, most = "", 0
    for item in sorted(sold):
        if sold[item] > most:
            best, most = item, sold[item]
    return best
''',
        (({"pen": 3, "cup": 8},), ({"pen": 4, "cup": 4},), ({},)),
    ),
    Function(
        "stock",
        '''def boxes(count, size=$size):
    """How many boxes of a size hold so many items."""
    return (count + size - 1) // size
''',
        ((25,), (0,), (12, 6), (13, 6)),
        numbers={"size": (4, 8, 10)},
    ),
    Function(
        "sequences",
        '''def chunked(items, size=$size):
    """The items in lists of a size; the last one may be shorter."""
    return [items[start : start + size] for start in range(0, len(items), size)]
''',
        (([1, 2, 3, 4, 5, 6, 7],), ([1, 2, 3], 1), ([], 2)),
        numbers={"size": (2, 3)},
    ),
    Function(
        "sequences",
        '''def running_totals(numbers):
    """The sum of the numbers up to each place."""
    total, totals = 0, []
    for number in numbers:
        total += number
        totals.append(total)
    return totals
''',
        (([3, 1, 4],), ([],), ([5, -5, 2],)),
    ),
    Function(
        "sequences",
        '''def longest_rise(numbers):
    """The length of the longest run in which each number is greater than the one before."""
    longest, length = 0, 0
    for index in range(len(numbers)):
        if index > 0 and numbers[index] > numbers[index - 1]:
            length += 1
        else:
            length = 1
        longest = max(longest, length)
    return longest
''',
        (([1, 2, 3, 2, 5],), ([],), ([4, 4, 4],), ([9, 1, 5, 6, 7],)),
    ),
    Function(
        "sequences",
        '''def rotated(items, steps=1):
    """The items moved to the left, those that fall out appended at the end."""
    if not items:
        return items
    steps = steps % len(items)
    return items[steps:] + items[:steps]
''',
        (([1, 2, 3, 4],), ([1, 2, 3], 2), ([], 3), ([1, 2], 5)),
    ),
    Function(
        "sequences",
        '''def without_repeats(items, keep_order=True):
    """Each item once, where it first stood or sorted."""
    seen = []
    for item in items:
        if item not in seen:
            seen.append(item)
    if keep_order:
        return seen
    return sorted(seen)
''',
        (([3, 1, 3, 2, 1],), ([3, 1, 3], False), ([],)),
    ),
)
FUNCTIONS: Mapping[str, Function] = {function.name: function for function in _LIST}
