"""The object store in a folder.

Every object is written to a temporary file on the same file system, flushed to the disk, and only then given its
name: by rename (replace) or by hard link (create if absent: the kernel lets exactly one racer through). A process
killed at any instant, or a full disk, leaves at most a file under `.temporary/`, which no reader sees. Objects are
read-only, and reads hand out copies: a stage that writes into its input must not be able to reach the store.

"Replace if unchanged" looks and renames under a lock that every other way to replace or delete that object takes too.
The kernel gives a lock back when its holder dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from artifacts.store import CHUNK_BYTES, MARKER, Marker, MissingObject, StoreError, check_name

TEMPORARY = ".temporary"
LOCKS = ".locks"


class FileStore:
    """Objects as files under `root`, which is made on the first write."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.url = f"file:{self.root}"
        self._marker = Marker()

    def put_file(self, name: str, path: Path, sha256: str | None = None) -> None:
        target = self._path(name)
        self._marker.ensure(self)
        try:
            with path.open("rb") as source, self._finished(name, _pieces(source)) as (temporary, found):
                if sha256 is not None and found != sha256:
                    raise StoreError(f"{path} changed while it was stored: expected sha256 {sha256}, read {found}")
                with self._locked(name):
                    _replace(temporary, target)
        except OSError as error:
            raise self._failed("store", name, error) from error

    def put_bytes(self, name: str, data: bytes) -> None:
        target = self._path(name)
        self._marker.ensure(self)
        try:
            with self._finished(name, [data]) as (temporary, _), self._locked(name):
                _replace(temporary, target)
        except OSError as error:
            raise self._failed("store", name, error) from error

    def put_if_absent(self, name: str, data: bytes) -> bool:
        target = self._path(name)
        self._marker.ensure(self)
        if target.exists():
            return False
        try:
            with self._finished(name, [data]) as (temporary, _):
                _make_folder(target.parent)
                os.link(temporary, target)
                _flush_folder(target.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise self._failed("create", name, error) from error
        return True

    def put_if_tag(self, name: str, data: bytes, tag: str) -> bool:
        target = self._path(name)
        try:
            with self._finished(name, [data]) as (temporary, _), self._locked(name):
                if self.read_tagged(name)[1] != tag:
                    return False
                _replace(temporary, target)
        except MissingObject:
            return False
        except OSError as error:
            raise self._failed("replace", name, error) from error
        return True

    def read(self, name: str) -> bytes:
        return b"".join(self.stream(name))

    def read_tagged(self, name: str) -> tuple[bytes, str]:
        data = self.read(name)
        return data, hashlib.sha256(data).hexdigest()

    def stream(self, name: str) -> Iterator[bytes]:
        try:
            with self._path(name).open("rb") as source:
                yield from _pieces(source)
        except (FileNotFoundError, NotADirectoryError):
            raise MissingObject(f"no object {name} in store {self.url}") from None
        except OSError as error:
            raise self._failed("read", name, error) from error

    def fetch(self, name: str, path: Path) -> None:
        source = self._path(name)
        try:
            shutil.copyfile(source, path)
        except (FileNotFoundError, NotADirectoryError):
            if path.parent.is_dir() and not source.is_file():
                raise MissingObject(f"no object {name} in store {self.url}") from None
            raise
        except OSError as error:
            raise self._failed(f"copy to {path}", name, error) from error

    def size(self, name: str) -> int | None:
        path = self._path(name)
        try:
            return path.stat().st_size if path.is_file() else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("look at", name, error) from error

    def modified(self, name: str) -> float | None:
        path = self._path(name)
        try:
            return path.stat().st_mtime if path.is_file() else None
        except FileNotFoundError:
            return None
        except OSError as error:
            raise self._failed("look at", name, error) from error

    def list(self, prefix: str) -> Iterator[str]:
        folder, _, _ = prefix.rpartition("/")
        top = self._path(folder) if folder else self.root
        names: list[str] = []
        for parent, folders, files in os.walk(top):
            folders[:] = [each for each in folders if each not in (TEMPORARY, LOCKS)]
            relative = Path(parent).relative_to(self.root)
            names.extend((relative / each).as_posix() for each in files)
        yield from sorted(name for name in names if name.startswith(prefix) and name != MARKER)

    def delete(self, name: str) -> None:
        path = self._path(name)
        try:
            if path.exists():
                with self._locked(name):
                    path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed("delete", name, error) from error

    def _path(self, name: str) -> Path:
        return self.root / check_name(name)

    def _failed(self, action: str, name: str, error: OSError) -> StoreError:
        return StoreError(f"cannot {action} {name} in store {self.url}: {error.strerror or error}")

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """Nobody else who asks for the lock of this object has it. Some objects share one."""
        folder = self.root / LOCKS
        _make_folder(folder)
        descriptor = os.open(folder / hashlib.sha256(name.encode()).hexdigest()[:2], os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextlib.contextmanager
    def _finished(self, name: str, pieces: Iterable[bytes]) -> Iterator[tuple[Path, str]]:
        """A complete temporary file on the disk and its sha256; removed at the end unless it was renamed away."""
        folder = self.root / TEMPORARY
        _make_folder(folder)
        descriptor, temporary_name = tempfile.mkstemp(dir=folder, prefix=name.rpartition("/")[2][:16] + ".")
        temporary = Path(temporary_name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                found = _write(file.fileno(), pieces)
                os.fchmod(file.fileno(), 0o444)
            yield temporary, found
        finally:
            temporary.unlink(missing_ok=True)


def _write(descriptor: int, pieces: Iterable[bytes]) -> str:
    """Write all pieces and wait for the disk; returns their sha256."""
    hasher = hashlib.sha256()
    for piece in pieces:
        hasher.update(piece)
        rest = memoryview(piece)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)
    return hasher.hexdigest()


def _pieces(file: object) -> Iterator[bytes]:
    while piece := file.read(CHUNK_BYTES):  # type: ignore[attr-defined]
        yield piece


def _replace(temporary: Path, target: Path) -> None:
    _make_folder(target.parent)
    temporary.replace(target)
    _flush_folder(target.parent)


def _make_folder(folder: Path) -> None:
    """Make a folder and flush every parent with a new entry, so that a power cut cannot lose the path to an object."""
    missing = []
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(exist_ok=True)
        _flush_folder(each.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
