"""Where the environments differ in which the parts of a model were made.

The environment (library versions, device kind) enters no cache key, so a model may hold parts made under several.
Byte-identity is promised within one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.differences import Difference, differences
from artifacts.records import Provenance
from artifacts.repository import Repository


@dataclass(frozen=True)
class Remade:
    """A record that was made again elsewhere, with the same bytes: what differs from its first making to its last."""

    step: str
    record: str
    differences: tuple[Difference, ...]

    def describe(self) -> str:
        """One line."""
        told = "; ".join(each.describe() for each in self.differences)
        return f"{self.step} {self.record[:12]} was made again in another environment, with the same bytes: {told}"


@dataclass(frozen=True)
class Mixed:
    """One field of the environment that had several values. `makers` maps each value, as JSON, to the stages."""

    field: str
    makers: Mapping[str, tuple[str, ...]]

    def describe(self) -> str:
        """One line, the value with the most stages first."""
        by_count = sorted(self.makers.items(), key=lambda item: (-len(item[1]), item[0]))
        told = "; ".join(f"{value} for {_counted(steps)}" for value, steps in by_count)
        return f"{self.field} differs between the parts: {told}"


@dataclass(frozen=True)
class Environments:
    """What differs between makings of one record, and between records."""

    remade: tuple[Remade, ...]
    mixed: tuple[Mixed, ...]

    def describe(self) -> list[str]:
        """A line for each difference."""
        return [*(each.describe() for each in self.mixed), *(each.describe() for each in self.remade)]


def environments(repository: Repository, steps: Mapping[str, str]) -> Environments:
    """Compare the makings of records, given as record digest -> stage. Records without provenance have no say.

    Raises ArtifactError for provenance that is malformed.
    """
    makings = {record: repository.provenances(record) for record in steps}
    remade = [
        Remade(steps[record], record, found)
        for record, made in makings.items()
        if len(made) > 1 and (found := differences(made[0].environment, made[-1].environment))
    ]
    return Environments(tuple(remade), _mixed((steps[record], made[-1]) for record, made in makings.items() if made))


def _mixed(latest: Iterable[tuple[str, Provenance]]) -> tuple[Mixed, ...]:
    """Fields that some environments lack (only stages that compute have devices) are compared among the others."""
    found: dict[str, dict[str, list[str]]] = {}
    for step, made in latest:
        for field, value in made.environment.items():
            found.setdefault(field, {}).setdefault(_text(value), []).append(step)
    return tuple(
        Mixed(field, {value: tuple(sorted(steps)) for value, steps in sorted(values.items())})
        for field, values in sorted(found.items())
        if len(values) > 1
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _counted(steps: Iterable[str]) -> str:
    names = list(steps)
    distinct = list(dict.fromkeys(names))
    return ", ".join(f"{name} ({names.count(name)})" if names.count(name) > 1 else name for name in distinct)
