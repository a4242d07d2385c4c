"""What differs between two pieces of plain data, value by value: for key payloads, configs, environments."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from artifacts.canonical import canonical_json

SHOWN_CHARACTERS = 70
SHOWN_ITEMS = 4


class Absent(Enum):
    """The type of `ABSENT`, which stands for a value that one side does not have: `None` is a value."""

    ABSENT = "absent"


ABSENT = Absent.ABSENT


@dataclass(frozen=True)
class Difference:
    """One value that differs. `path` leads to it (`pretrain.optimizer.muon_lr`, `sources[1].weight`).

    `old` and `new` are plain data, or `ABSENT` where a side has nothing there.
    """

    path: str
    old: Any
    new: Any

    def to_json(self) -> dict[str, Any]:
        """Plain data: `path`, and `old` and `new` where there is such a value."""
        sides = {"old": self.old, "new": self.new}
        return {"path": self.path} | {side: value for side, value in sides.items() if value is not ABSENT}

    def describe(self) -> str:
        """One line: `path: old -> new`, `path: only in the new, ...`; long values are summarised."""
        if self.old is ABSENT:
            return f"{self.path}: only in the new, {shown(self.new)}"
        if self.new is ABSENT:
            return f"{self.path}: only in the old, {shown(self.old)}"
        return f"{self.path}: {shown(self.old)} -> {shown(self.new)}"


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Every value that differs, ordered by path: none exactly when the canonical JSON of both is the same.

    Mappings are compared by key and lists by position, down to the first value that one side lacks or that is of
    another type. So 1, 1.0 and True differ, as they do in a cache key.
    """
    return tuple(_compare("", old, new))


def shown(value: Any) -> str:
    """A value in a few words: JSON where that is short, else how much of what there is."""
    text = json.dumps(value, ensure_ascii=False)
    if len(text) <= SHOWN_CHARACTERS:
        return text
    if isinstance(value, str):
        return json.dumps(value[:SHOWN_CHARACTERS], ensure_ascii=False) + f"... ({len(value):,} characters)"
    if isinstance(value, Mapping):
        return f"{{{', '.join(sorted(value)[:SHOWN_ITEMS])}{', ...' * (len(value) > SHOWN_ITEMS)}}} ({len(value)} keys)"
    if isinstance(value, Sequence):
        first = shown(value[0])
        return f"[{first}{', ...' * (len(value) > 1)}] ({len(value):,} items)"
    return text


def _compare(path: str, old: Any, new: Any) -> Iterator[Difference]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in sorted({*old, *new}):
            name = f"{path}.{key}" if path else key
            yield from _compare(name, old.get(key, ABSENT), new.get(key, ABSENT))
    elif _is_list(old) and _is_list(new):
        for index in range(max(len(old), len(new))):
            sides = (side[index] if index < len(side) else ABSENT for side in (old, new))
            yield from _compare(f"{path}[{index}]", *sides)
    elif old is ABSENT or new is ABSENT or canonical_json(old) != canonical_json(new):
        yield Difference(path, old, new)


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))
