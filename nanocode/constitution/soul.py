"""SOUL.md: the constitution as a file. Checkable principles in TOML front matter, prose for models after it."""

from __future__ import annotations

import hashlib
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

FENCE = "+++"
_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class SoulError(ValueError):
    """A SOUL.md that cannot be used. The message is one line: what, where, and the cure."""


@dataclass(frozen=True)
class Principle:
    """One thing asked of every reply. ``check``: who can tell, a rule (`nanocode.constitution.rules`) or a judge."""

    id: str
    statement: str
    check: Literal["rule", "judged"]


@dataclass(frozen=True)
class Soul:
    """The constitution. ``digest``: sha256 of the file's bytes, recorded with all data generated from it."""

    principles: tuple[Principle, ...]
    prose: str
    proper_nouns: frozenset[str]
    digest: str

    @classmethod
    def load(cls, path: Path | str) -> Soul:
        """Read and validate the file. Raises SoulError when it is missing or its front matter is at fault."""
        try:
            raw = Path(path).read_bytes()
        except FileNotFoundError:
            raise SoulError(f"no constitution at {path}: name a SOUL.md") from None
        except OSError as error:
            raise SoulError(f"cannot read {path}: {error}") from error
        return cls.parse(raw, where=str(path))

    @classmethod
    def parse(cls, raw: bytes, where: str = "SOUL.md") -> Soul:
        """Validate the bytes of a SOUL.md; `where` names it in errors. Raises SoulError."""
        try:
            text = raw.decode("utf-8-sig")  # some editors put a mark before the text
        except UnicodeDecodeError as error:
            raise SoulError(f"{where} is not UTF-8: {error}") from None
        front, prose = _split(text, where)
        nouns = front.pop("proper_nouns", [])
        entries = front.pop("principles", None)
        if front:
            raise SoulError(
                f"{where}: unknown key {sorted(front)[0]!r}: the front matter takes proper_nouns, principles"
            )
        if not isinstance(nouns, list) or not all(isinstance(noun, str) and noun for noun in nouns):
            raise SoulError(f"{where}: proper_nouns must be a list of words")
        if not isinstance(entries, list) or not entries:
            raise SoulError(f"{where}: give at least one [[principles]] table")
        principles = tuple(_principle(entry, index, where) for index, entry in enumerate(entries))
        ids = [principle.id for principle in principles]
        twice = sorted({name for name in ids if ids.count(name) > 1})
        if twice:
            raise SoulError(f"{where}: the principle {twice[0]!r} is given twice")
        if all(principle.check == "judged" for principle in principles):
            raise SoulError(f"{where}: no principle is checked by a rule: the rule critic would accept everything")
        if not prose:
            raise SoulError(f"{where}: there is no prose after the front matter: models need it")
        return cls(principles, prose, frozenset(nouns), hashlib.sha256(raw).hexdigest())

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of all principles, in the order of the file."""
        return tuple(principle.id for principle in self.principles)


def _split(text: str, where: str) -> tuple[dict[str, Any], str]:
    """Front matter (parsed) and prose."""
    lines = text.splitlines()
    if not lines or lines[0].strip() != FENCE:
        raise SoulError(f"{where} must open with a line {FENCE}, TOML front matter, and another line {FENCE}")
    closing = next((index for index, line in enumerate(lines[1:], start=1) if line.strip() == FENCE), None)
    if closing is None:
        raise SoulError(f"{where}: the front matter is not closed by a line {FENCE}")
    try:
        front = tomllib.loads("\n".join(lines[1:closing]))
    except tomllib.TOMLDecodeError as error:
        raise SoulError(f"{where}: the front matter is not valid TOML: {error}") from None
    return front, "\n".join(lines[closing + 1 :]).strip()


def _principle(entry: Any, index: int, where: str) -> Principle:
    label = f"{where}: principle {index + 1}"
    if not isinstance(entry, dict) or set(entry) != {"id", "statement", "check"}:
        raise SoulError(f"{label} must have exactly id, statement and check")
    if not all(isinstance(value, str) and value.strip() for value in entry.values()):
        raise SoulError(f"{label}: id, statement and check must be non-empty strings")
    if not _ID.fullmatch(entry["id"]):
        raise SoulError(f"{label}: the id {entry['id']!r} must be letters, digits, hyphens, and nothing else")
    if entry["check"] not in ("rule", "judged"):
        raise SoulError(f"{label}: check must be 'rule' or 'judged', not {entry['check']!r}")
    return Principle(entry["id"], entry["statement"], cast(Literal["rule", "judged"], entry["check"]))
