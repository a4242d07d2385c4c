"""Work folders: private to one build, gone at its end, and swept up by the next build when a kill left one behind."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

_MARK = "work-"
_LOCK = ".lock"


@contextlib.contextmanager
def work_folder(work_root: Path, label: str) -> Iterator[Path]:
    """A fresh empty folder under `work_root`, removed at the end whatever happens.

    A lock that dies with the process tells which of the other folders are abandoned; those are removed first.
    """
    work_root.mkdir(parents=True, exist_ok=True)
    _sweep(work_root)
    fresh = Path(tempfile.mkdtemp(prefix="new-", dir=work_root))
    lock = os.open(fresh / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    # Only a locked folder gets the name that sweeps look for.
    outer = fresh.rename(work_root / f"{_MARK}{label}-{fresh.name}")
    try:
        inner = outer / "files"
        inner.mkdir()
        yield inner
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        os.close(lock)


def _sweep(work_root: Path) -> None:
    for folder in sorted(work_root.glob(f"{_MARK}*")):
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            pass
        finally:
            os.close(lock)
