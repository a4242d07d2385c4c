"""How a source is read: in blocks that say where the next one begins, with bounded patience for the network."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from nanocode.data.documents import RawDocument, SourceError


@dataclass(frozen=True)
class Block:
    """Some documents in order, few enough for memory, and plain data from which reading goes on after them."""

    documents: list[RawDocument]
    after: Mapping[str, Any]


@dataclass(frozen=True)
class Retry:
    """Attempts with doubling pauses. Whoever makes progress counts failures from 0 again."""

    max_attempts: int = 6
    say: Callable[[str], None] = lambda line: None
    sleep: Callable[[float], None] = time.sleep
    first_seconds: float = 1.0
    longest_seconds: float = 60.0

    def pause(self, failures: int, what: str, error: Exception) -> None:
        """Wait before the next attempt. Raises SourceError from `error` when `failures` used all attempts up."""
        reason = first_line(error)
        if failures >= self.max_attempts:
            raise SourceError(
                f"{what}: {reason}; gave up after {failures} attempts: check the network and run again, "
                "which goes on from where this run was"
            ) from error
        seconds = min(self.longest_seconds, self.first_seconds * 2 ** (failures - 1))
        self.say(f"{what}: {reason}; trying again in {seconds:g} s ({failures} of {self.max_attempts} attempts failed)")
        self.sleep(seconds)


@dataclass(frozen=True)
class Reading:
    """What reading needs besides the source: patience, a folder for copies, and the manifest's sha256 by origin.

    Without `sha256` files are read as they are now, whatever they were when the manifest was written.
    """

    retry: Retry
    scratch: Path
    sha256: Mapping[str, str] | None = None


def first_line(error: BaseException) -> str:
    """An error's message in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def counted_blocks(documents: Iterable[RawDocument], size: int, start: Mapping[str, Any] | None) -> Iterator[Block]:
    """Blocks of `size` documents from a list that can be made again: the place is how many were read."""
    done = start["documents"] if start else 0
    remaining = islice(documents, done, None)
    while documents_here := list(islice(remaining, size)):
        done += len(documents_here)
        yield Block(documents_here, {"documents": done})
