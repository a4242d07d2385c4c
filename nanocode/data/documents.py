"""What a source yields and what may pass: raw documents, the admission filter, the stable order.

A document's `origin` is a stable relative name, never a path of this machine. Its `group` is the key that decides on
which side of the train / validation split it falls: everything derived from one file shares a group across sources, so
that the docstring of a held-out module is not trained on through the code of that module.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from nanocode.config import TableSource

Thing = TypeVar("Thing")

WHOLE_ROW = "*"  # the text column that stands for all of them
MAX_CONTROL_SHARE = 0.1  # of the characters; text has none to speak of, and a stray escape sequence is forgiven
_CONTROL = dict.fromkeys([*range(0x20), 0x7F, *range(0x80, 0xA0)])
for _allowed in "\t\n\r\f\v":
    del _CONTROL[ord(_allowed)]


class SourceError(ValueError):
    """A source that cannot be read or holds nothing. The message is one line: what, where, and the cure."""


@dataclass(frozen=True)
class RawDocument:
    """What a source found, before the filter: bytes of a file or text of a row; `fault` when it could not be taken
    apart."""

    content: bytes | str
    origin: str
    licence: str
    group: str
    fault: str | None = None


@dataclass(frozen=True)
class Document:
    """Text that may be trained on."""

    text: str
    origin: str
    licence: str
    group: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode("utf-8")).hexdigest()


def row_content(row: Mapping[str, Any], source: TableSource) -> Any:
    """What a row holds in the text column; of the whole row its JSON, in which what JSON does not know is text."""
    return json.dumps(dict(row), default=str) if source.text_column == WHOLE_ROW else row[source.text_column]


def row_document(content: Any, licence: Any = None, *, origin: str, source: TableSource) -> RawDocument:
    """A row of a table. A null counts as empty, anything else that is not text as the fault ``not_text``.

    With a licence column, `licence` is its value: a row without one has the fault ``no_licence``, one with a licence
    that is not on the list ``licence_not_allowed``. Several licences are joined by AND, as SPDX does.
    """
    fault = None
    if content is None:
        content = b""
    elif not isinstance(content, (str, bytes)):
        content, fault = b"", "not_text"
    named = source.licence
    if source.licence_column is not None:
        licences = [licence] if isinstance(licence, str) else licence
        if not isinstance(licences, list) or not all(
            isinstance(each, str) and each.strip() for each in licences or [0]
        ):
            return RawDocument(content, origin, named, group=origin, fault=fault or "no_licence")
        allowed = {each.casefold() for each in source.licences}
        if allowed and not {each.casefold() for each in licences} <= allowed:
            fault = fault or "licence_not_allowed"
        named = " AND ".join(sorted(set(licences)))
    return RawDocument(content, origin, named, group=origin, fault=fault)


def admit(raw: RawDocument, min_bytes: int, max_bytes: int) -> Document | str:
    """The document, or the reason why it is skipped.

    Reasons: ``not_utf8``, ``binary`` (a NUL, or more than a tenth control characters), ``empty``, ``too_short``,
    ``too_long``, or the fault that the source reported.
    """
    if raw.fault is not None:
        return raw.fault
    try:
        encoded = raw.content if isinstance(raw.content, bytes) else raw.content.encode("utf-8")
        text = encoded.decode("utf-8-sig")
    except UnicodeError:  # a lone surrogate, which JSON can spell, fails on the way in
        return "not_utf8"
    if not text.strip():
        return "empty"
    if "\0" in text or len(text) - len(text.translate(_CONTROL)) > MAX_CONTROL_SHARE * len(text):
        return "binary"
    if len(encoded) < min_bytes:
        return "too_short"
    if len(encoded) > max_bytes:
        return "too_long"
    return Document(text, raw.origin, raw.licence, raw.group)


def stable_order(things: Iterable[Thing], name: Callable[[Thing], str]) -> list[Thing]:
    """Sorted by the sha256 of each thing's name: as good as shuffled, the same everywhere, independent of what else is
    there."""
    return sorted(things, key=lambda thing: hashlib.sha256(name(thing).encode("utf-8")).digest())
