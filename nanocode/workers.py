"""A function applied to a stream of items by several processes, the answers in the order of the items.

Each worker is a process at the end of two pipes. It shares no signal with this process and ends when its input does:
because the work is done, or because this process was killed. Memory: two items and their answers for each worker.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from itertools import chain, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")

_PACKAGES = Path(__file__).resolve().parents[1]
_SERVE = "import sys; from nanocode.workers import serve; serve(*sys.argv[1:])"


class WorkerError(RuntimeError):
    """A worker that failed or went away."""


def in_processes(
    make: Callable[..., Callable[[Item], Answer]], arguments: Iterable[str], items: Iterable[Item], processes: int
) -> Generator[Answer, None, None]:
    """``make(*arguments)(item)`` for each item, computed by as many processes; by this one if there is one of either.

    `make` is a function of a module; each process calls it once. Closing the generator ends the processes. Raises
    WorkerError, and what `make` or `items` raise.
    """
    function = make(*arguments)  # here as well, so that bad arguments fail once and with their own words
    stream = iter(items)
    first = list(islice(stream, 2))
    if processes == 1 or len(first) < 2:
        yield from map(function, chain(first, stream))
    else:
        yield from _answers([f"{make.__module__}:{make.__name__}", *arguments], chain(first, stream), processes)


def serve(name: str, *arguments: str) -> None:
    """A worker's whole life: items on stdin, answers (or what went wrong) on stdout."""
    module, _, attribute = name.partition(":")
    function = getattr(import_module(module), attribute)(*arguments)
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while True:
        try:
            item = pickle.load(source)
        except EOFError:
            return
        try:
            answer = (True, function(item))
        except Exception as error:  # noqa: BLE001  # reported where the answer is asked for
            answer = (False, f"{type(error).__name__}: {error}")
        try:
            pickle.dump(answer, sink, protocol=pickle.HIGHEST_PROTOCOL)
            sink.flush()
        except BrokenPipeError:
            os._exit(0)  # nobody waits for the answer; a normal end would try to flush it again


def _answers(command: list[str], items: Iterator[Any], processes: int) -> Iterator[Any]:
    idle: SimpleQueue[Worker] = SimpleQueue()
    workers: list[Worker] = []
    waiting: deque[Future[Any]] = deque()

    def ask(item: Any) -> Any:
        worker = idle.get()
        try:
            return worker.ask(item)
        finally:
            idle.put(worker)

    threads = ThreadPoolExecutor(processes, "worker")  # they wait for the processes
    try:
        for item in items:
            if len(workers) < processes:
                workers.append(Worker(command))
                idle.put(workers[-1])
            if len(waiting) == 2 * processes:
                yield waiting.popleft().result()
            waiting.append(threads.submit(ask, item))
        while waiting:
            yield waiting.popleft().result()
    finally:
        for worker in workers:
            worker.kill()  # at once: nobody waits for what it may still be doing
        threads.shutdown(cancel_futures=True)
        for worker in workers:
            worker.close()


class Worker:
    """One process that answers one item at a time."""

    def __init__(self, command: list[str]) -> None:
        path = os.pathsep.join([str(_PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            process_group=0,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, item: Any) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            pickle.dump(item, self._process.stdin, protocol=pickle.HIGHEST_PROTOCOL)
            self._process.stdin.flush()
            fine, answer = pickle.load(self._process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            status = self._process.wait()
            raise WorkerError(f"a worker process ended with status {status}: is memory short?") from None
        if not fine:
            raise WorkerError(f"a worker process failed: {answer}")
        return answer

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:  # what was not sent is of no use any more
                continue
