"""The request ledger: every finished completion, on disk before anybody reads it, so that none is ever paid for
twice.

One append-only file (`nanocode.constitution.append_file`) of pairs: the request's key and the raw response.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from nanocode.constitution.append_file import AppendFile, LedgerError, Place

__all__ = ["Ledger", "LedgerError", "request_key"]


def request_key(request: Mapping[str, Any], sample: str, template: str) -> str:
    """sha256 of the canonical JSON of everything that decides a completion.

    `request` is the whole body (model, sampling fields, messages, tools, schema); `sample` tells apart samples of an
    equal request; `template` is the digest of the prompt templates. Addresses and keys are not part of it.
    """
    payload = {"request": request, "sample": sample, "template": template}
    canonical = json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


class Ledger:
    """A mapping from request keys to raw completions, used by one process at a time and by one thread.

    Raises LedgerError when another process has the file open, or when the file holds a damaged record before its end
    (which a kill cannot cause).
    """

    def __init__(self, path: Path | str) -> None:
        self._file = AppendFile(path)
        try:
            self._places: dict[str, Place] = {key: place for place, (key, _) in self._file.records()}
        except BaseException:
            self._file.close()
            raise
        self.path, self.torn_bytes = self._file.path, self._file.torn_bytes

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: str) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        """Keys in the order in which they were finished."""
        return iter(self._places)

    def get(self, key: str) -> str | None:
        """The raw completion for `key`, None if never finished. Raises LedgerError when it no longer verifies."""
        place = self._places.get(key)
        if place is None:
            return None
        found, raw = self._file.read(place)
        assert found == key, f"{self.path}: byte {place.offset} holds {found}, not {key}"
        return str(raw)

    def put(self, key: str, raw: str) -> str:
        """Store a raw completion and return what the ledger holds: the first one put under a key stays."""
        known = self.get(key)
        if known is not None:
            return known
        self._places[key] = self._file.append([key, raw])
        return raw

    def close(self) -> None:
        """Flush to disk and let go of the file."""
        self._file.close()
