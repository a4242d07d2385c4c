"""Canonical JSON: one value, one sequence of bytes, and so one digest, on every machine and in every run.

Keys are sorted, no spaces are written, text is UTF-8, floats are written as the shortest digits that read back to the
same number. Whatever has no such form is refused with the path that leads to it: what cannot be written the same way
twice must never decide a cache key.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any


class CanonicalError(ValueError):
    """A value without a canonical form. The message names the path inside the value."""


def canonical_json(value: Any) -> bytes:
    """The canonical JSON of plain data (mappings, lists, tuples, str, int, float, bool, None), as UTF-8.

    A tuple is written as a list. Raises CanonicalError for non-finite floats, sets, objects (also subclasses of the
    plain scalars, whose text may differ from their value's), keys that are not strings, and text that is not valid
    Unicode.
    """
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest(value: Any) -> str:
    """The sha256, in hex, of the value's canonical JSON. Raises CanonicalError."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def plain(value: Any, path: str = "value") -> Any:
    """A copy of `value` made of dicts, lists and plain scalars alone. Raises CanonicalError."""
    kind = type(value)
    if value is None or kind is bool or kind is int:
        return value
    if kind is str:
        return _text(value, path)
    if kind is float:
        if not math.isfinite(value):
            raise CanonicalError(f"{path} is {value}: only finite numbers have a canonical form")
        return value
    if kind is list or kind is tuple:
        return [plain(item, f"{path}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, Mapping):
        return {_key(key, path): plain(item, f"{path}.{key}") for key, item in value.items()}
    raise CanonicalError(
        f"{path} is a {kind.__qualname__}: use text, numbers, booleans, null, lists and mappings of them"
    )


def _key(key: Any, path: str) -> str:
    if type(key) is not str:
        raise CanonicalError(f"{path} has the key {key!r} ({type(key).__qualname__}): keys must be strings")
    return _text(key, f"a key of {path}")


def _text(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise CanonicalError(f"{path} holds half of a surrogate pair: {text!r} is not valid Unicode") from None
    return text
