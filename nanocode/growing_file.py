"""A file that only grows, in the hands of one process at a time."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Self


class FileInUseError(RuntimeError):
    """Another process has the file open."""


class DiskFullError(OSError):
    """The disk took a part of what was to be appended, which was taken back: the file is as before."""


class GrowingFile:
    """The file at `path`, made with its folders if need be and locked until `close` or the end of the process.

    A `private` one can be read by its owner alone and is never opened through a link.
    Raises FileInUseError when another process has it open.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_NOFOLLOW if private else 0)
        self._descriptor = os.open(path, flags, 0o600 if private else 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise FileInUseError(f"{path} is in use by another process") from None
        self.size = os.fstat(self._descriptor).st_size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        return self._descriptor < 0

    def append(self, data: bytes) -> int:
        """Hand all of `data` to the kernel, or nothing; the offset where it lies.

        Raises DiskFullError when only a part fits, OSError when the disk refuses.
        """
        written = os.write(self._descriptor, data)
        if written != len(data):
            os.ftruncate(self._descriptor, self.size)
            raise DiskFullError(f"{self.path}: the disk took {written} of {len(data)} bytes: free some space")
        self.size += written
        return self.size - written

    def read(self, offset: int, length: int) -> bytes:
        """The bytes at `offset`, fewer where the file ends before."""
        return os.pread(self._descriptor, length, offset)

    def cut(self, size: int) -> None:
        """Leave out everything from byte `size` on."""
        os.ftruncate(self._descriptor, size)
        self.size = size

    def sync(self) -> None:
        """Wait until everything is on disk."""
        os.fsync(self._descriptor)

    def close(self) -> None:
        """Let go of the file; what is not synced is left to the kernel."""
        if not self.closed:
            os.close(self._descriptor)
            self._descriptor = -1
