"""Large objects in parts, several at a time, with bounded memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from artifacts.store import StoreError

MOST_PARTS = 10_000  # of one multipart upload to S3


class Transfers:
    """The threads that move the parts of one store's objects, whoever asks: at most `workers` parts are in memory.

    Objects of up to `part_bytes` are moved whole.
    """

    def __init__(self, workers: int = 8, part_bytes: int = 8 << 20) -> None:
        self.part_bytes = part_bytes
        self._room = threading.BoundedSemaphore(workers)
        self._pool = ThreadPoolExecutor(workers, thread_name_prefix="store")

    def send(self, file: BinaryIO, size: int, send_part: Callable[[int, bytes], Any]) -> tuple[list[Any], str]:
        """Read a file once and send its parts, numbered from 1; returns the answers in order and the file's sha256."""
        hasher, waiting, answers = hashlib.sha256(), deque[Future[Any]](), list[Any]()
        part_bytes = max(self.part_bytes, -(-size // MOST_PARTS))
        try:
            for number, part in enumerate(iter(lambda: file.read(part_bytes), b""), 1):
                hasher.update(part)
                waiting.append(self._submit(send_part, number, part))
                while waiting and waiting[0].done():
                    answers.append(waiting.popleft().result())
            answers.extend(each.result() for each in waiting)
        finally:
            _forget(waiting)
        return answers, hasher.hexdigest()

    def receive(self, descriptor: int, size: int, first: bytes, read_part: Callable[[int], bytes]) -> None:
        """Write an object of `size` bytes, of which the `first` are here; `read_part(start)` gets one of the others."""
        write_at(descriptor, first, 0)

        def move(start: int) -> None:
            write_at(descriptor, read_part(start), start)

        waiting = deque[Future[Any]]()
        try:
            for start in range(len(first), size, self.part_bytes):
                waiting.append(self._submit(move, start))
                while waiting and waiting[0].done():
                    waiting.popleft().result()
            for each in waiting:
                each.result()
        finally:
            _forget(waiting)

    def _submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        self._room.acquire()
        try:
            future = self._pool.submit(function, *arguments)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future


@contextlib.contextmanager
def appearing(path: Path) -> Iterator[int]:
    """A descriptor of a new file that becomes `path` at the end, or never. Raises StoreError when the disk fails."""
    temporary = path.with_name(f".part-{uuid.uuid4().hex}")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            yield descriptor
        finally:
            os.close(descriptor)
        temporary.replace(path)
    except OSError as error:
        raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        temporary.unlink(missing_ok=True)


def write_at(descriptor: int, data: bytes, offset: int) -> None:
    """Write all of `data` from `offset` on."""
    rest = memoryview(data)
    while rest:
        written = os.pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def _forget(waiting: deque[Future[Any]]) -> None:
    """Start no more of them, and wait for those under way: their file is about to be closed."""
    for each in waiting:
        each.cancel()
    for each in waiting:
        if not each.cancelled():
            each.exception()
