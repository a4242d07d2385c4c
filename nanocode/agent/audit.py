"""The audit log: what the agent asked for, what was decided and by which rule, and what came of it.

One session, one file of JSON lines. Each line holds its number and the SHA-256 of the line before it, and a small file
beside the log (``NAME.head``) holds how many lines there are and the hash of the last one. So `verify` can name the
first line that was altered, deleted, inserted or moved, and tell a tail that was cut off from a line that a crash tore:
a crash leaves the log ahead of its head file or with half a line, never behind. A line is on disk before `append`
returns, hence a call's intent before its effect; only lines that undo can do without (of calls that change nothing, and
of an edit's end) are not waited for, and until the next that is, or `close`, the head file does not vouch for them.
Whoever can write both files can write a history of his own that verifies; the log must lie where the agent cannot reach
it, and `refuse_workspace` sees to that.

Lines are readable by their owner alone. Arguments are redacted (`nanocode.agent.redaction`) and long ones shortened.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from nanocode.agent.redaction import redacted
from nanocode.growing_file import DiskFullError, FileInUseError, GrowingFile

VERSION = 1
NOTHING = "0" * 64
SHOWN_ARGUMENT_CHARACTERS = 2_000


class AuditError(RuntimeError):
    """A log that cannot be written or does not verify. One line: what, where and the cure."""


@dataclass(frozen=True)
class Verified:
    """A log that holds together: its entries, and how many bytes of a line a crash left at the end."""

    entries: tuple[Mapping[str, Any], ...]
    torn_bytes: int = 0


class AuditLog:
    """One session's log. ``clock`` gives seconds since 1970; the session's name is the file's unless given.

    Opening an existing log verifies it, cuts a torn line off and says so in a line of its own. Raises AuditError when
    it does not verify or when another session has it open.
    """

    def __init__(self, path: Path | str, session: str | None = None, clock: Callable[[], float] = time.time) -> None:
        self.path = Path(path).absolute()
        self.session = self.path.stem if session is None else session
        self._clock = clock
        self._lines, self._previous, self._next_call = 0, NOTHING, 0
        try:
            self._file = GrowingFile(self.path, private=True)
        except FileInUseError:
            raise AuditError(f"{self.path} is in use by another session: end it or name another log") from None
        try:
            self._take_up()
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def entries(self) -> tuple[Mapping[str, Any], ...]:
        """What stood in the log when it was opened."""
        return self._entries

    @property
    def next_call(self) -> int:
        """A number that no call in this log has yet."""
        return self._next_call

    def refuse_workspace(self, workspace: Path) -> None:
        """Raise AuditError when the log lies in the workspace, where the agent could rewrite it."""
        if self.path.parent.resolve().is_relative_to(workspace.resolve()):
            raise AuditError(f"the audit log {self.path} lies in the workspace: keep it outside of {workspace}")

    def append(
        self, kind: str, *, durable: bool = True, arguments: Mapping[str, str] | None = None, **values: Any
    ) -> None:
        """Write a line and wait until it is on disk. Raises AuditError when the disk refuses.

        ``arguments``, a call's own, are written as `shown_arguments` gives them and everything else as it is.
        A line that is not ``durable`` survives the process at once, and a power cut once a durable one follows.
        """
        entry = {
            "line": self._lines + 1,
            "kind": kind,
            "time": round(self._clock(), 6),
            "session": self.session,
            **({} if arguments is None else {"arguments": shown_arguments(arguments)}),
            **values,
        }
        line = json.dumps({**entry, "previous": self._previous}).encode("ascii") + b"\n"
        try:
            self._file.append(line)
            self._lines, self._previous = self._lines + 1, _sha256(line)
            if durable:
                self._settle()
        except DiskFullError as error:
            raise AuditError(str(error)) from None
        except OSError as error:
            raise AuditError(
                f"{self.path} cannot be written ({error.strerror}): nothing runs without its log"
            ) from None
        self._next_call = max(self._next_call, int(values.get("call", -1)) + 1)

    def close(self) -> None:
        """Let go of the file, all of it on disk. Raises OSError when the disk refuses."""
        if not self._file.closed:
            with self._file:
                self._settle()

    def _settle(self) -> None:
        self._file.sync()
        _write_head(self.path, self._lines, self._previous)

    def _take_up(self) -> None:
        if not self._file.size and not _head_path(self.path).exists():
            self._entries: tuple[Mapping[str, Any], ...] = ()
            _write_head(self.path, 0, NOTHING)
            self.append("header", version=VERSION)
            _sync_folder(self.path.parent)
            return
        found = verify(self.path)
        self._entries = found.entries
        if found.torn_bytes:
            self._file.cut(self._file.size - found.torn_bytes)
        lines, _ = _split(self.path.read_bytes())
        self._lines, self._previous = len(lines), _sha256(lines[-1]) if lines else NOTHING
        self._next_call = 1 + max((int(entry.get("call", -1)) for entry in found.entries), default=-1)
        if not lines:
            self.append("header", version=VERSION)
        if found.torn_bytes:
            self.append("torn", bytes=found.torn_bytes)


def verify(path: Path | str) -> Verified:
    """The log's entries. Raises AuditError that names the first line that is not what was written.

    Half a line at the end is what a crash leaves and no fault; neither is a call that has an intent and no outcome.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise AuditError(f"{path} cannot be read: {error.strerror}") from None
    lines, torn = _split(data)
    entries = tuple(_entry(path, number, line) for number, line in enumerate(lines, start=1))
    for number, entry in enumerate(entries, start=1):
        if entry["line"] != number:
            raise AuditError(f"{path}: line {number} is gone or moved: line {entry['line']} stands in its place")
    count, newest = _read_head(path)
    if count > len(lines):
        raise AuditError(f"{path}: line {len(lines) + 1} is missing: the tail was cut off ({count} lines were written)")
    told = [entry["previous"] for entry in entries[1:]]
    if count:
        told[count - 1 :] = [newest, *told[count:]]
    if (altered := _first_altered([_sha256(line) for line in lines], told)) is not None:
        raise AuditError(f"{path}: line {altered} was altered")
    if entries and (entries[0]["kind"], entries[0].get("version")) != ("header", VERSION):
        raise AuditError(f"{path}: line 1 is not the header of a log of version {VERSION}")
    return Verified(entries, torn)


def _first_altered(hashes: Sequence[str], told: Sequence[str]) -> int | None:
    """The number of the first line whose hash is not the one told behind it.

    The hash may have been altered instead of the line: then the line that holds it does not match what is told of it.
    """
    wrong = [place for place, (found, expected) in enumerate(zip(hashes, told, strict=False)) if found != expected]
    if not wrong:
        return None
    return wrong[0] + 2 if wrong[0] + 1 in wrong[1:2] else wrong[0] + 1


def shown_arguments(arguments: Mapping[str, str]) -> dict[str, str]:
    """Arguments as they may be written down: secrets replaced, long ones cut with their length and hash told."""
    return {redacted(name): _shortened(redacted(value)) for name, value in arguments.items()}


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_ARGUMENT_CHARACTERS:
        return text
    digest = _sha256(text.encode("utf-8", "surrogatepass"))
    return f"{text[:SHOWN_ARGUMENT_CHARACTERS]}... ({len(text)} characters in all, sha256 {digest})"


def _split(data: bytes) -> tuple[list[bytes], int]:
    """Whole lines, newline included, and the number of bytes behind the last one."""
    *lines, rest = data.split(b"\n")
    return [line + b"\n" for line in lines], len(rest)


def _entry(path: Path, number: int, line: bytes) -> Mapping[str, Any]:
    try:
        entry = json.loads(line)
        if not isinstance(entry["line"], int) or not isinstance(entry["previous"], str) or "kind" not in entry:
            raise KeyError
    except (ValueError, TypeError, KeyError):
        raise AuditError(f"{path}: line {number} was altered: it is no entry of a log") from None
    return entry


def _head_path(path: Path) -> Path:
    return path.with_name(path.name + ".head")


def _write_head(path: Path, lines: int, digest: str) -> None:
    """Overwrite the head file in place: always the same few bytes, which a crash leaves whole, old or new."""
    head = _head_path(path)
    written = head if head.exists() else head.with_name(head.name + ".tmp")
    descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.pwrite(descriptor, f"{lines:020d} {digest}\n".encode(), 0)
        if written != head:
            os.fsync(descriptor)
            written.replace(head)
    finally:
        os.close(descriptor)


def _sync_folder(folder: Path) -> None:
    """Make the names of new files last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_head(path: Path) -> tuple[int, str]:
    try:
        lines, digest = _head_path(path).read_text().split()
        return int(lines), digest
    except FileNotFoundError:
        raise AuditError(f"{_head_path(path)} is missing: whether the log's tail was cut off cannot be told") from None
    except ValueError:
        raise AuditError(f"{_head_path(path)} was altered: it is not a number of lines and a hash") from None


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
