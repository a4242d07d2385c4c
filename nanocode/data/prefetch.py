"""Loading ahead: the next values of a function of the step, computed in a thread while the step before is used."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Prefetch(Generic[Value]):
    """``prefetch(step) == load(step)`` for every step below `steps`, at most `ahead` values waiting.

    A context manager. Asking for another step than the next one starts again from there, so that resume, skip and
    replay need no care. What `load` raises for a step is raised where that step is asked for. The thread starts with
    the first call and has ended when `close` returns.
    """

    def __init__(self, load: Callable[[int], Value], steps: int, ahead: int = 2) -> None:
        if ahead < 1:
            raise ValueError(f"prefetching needs room for at least one value, got {ahead}")
        self._load, self._steps, self._ahead = load, steps, ahead
        self._changed = threading.Condition()
        self._ready: deque[tuple[Value | None, BaseException | None]] = deque()
        self._next = 0  # the step whose value stands first in the queue, or will
        self._thread: threading.Thread | None = None
        self._wanted = object()  # identity of the thread whose values count

    def __enter__(self) -> Prefetch[Value]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __call__(self, step: int) -> Value:
        """The value of a step. Raises IndexError beyond the last step, and what `load` raised."""
        if not 0 <= step < self._steps:
            raise IndexError(f"step {step} of {self._steps}")
        if self._thread is None or step != self._next:
            self._start(step)
        with self._changed:
            while not self._ready:
                self._changed.wait()
            value, error = self._ready.popleft()
            self._next += 1
            self._changed.notify_all()
        if error is not None:
            self.close()
            raise error
        return value  # type: ignore[return-value]  # None only beside an error

    def close(self) -> None:
        """End the thread and forget what it has loaded; the next call starts anew."""
        with self._changed:
            self._wanted = object()
            self._ready.clear()
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _start(self, step: int) -> None:
        self.close()
        self._next = step
        self._thread = threading.Thread(target=self._work, args=(step, self._wanted), name="prefetch", daemon=True)
        self._thread.start()

    def _work(self, first: int, ticket: object) -> None:
        for step in range(first, self._steps):
            value: Value | None = None
            failure: BaseException | None = None
            try:
                value = self._load(step)
            except BaseException as error:  # noqa: BLE001  # handed to the consumer, whatever it is
                failure = error
            with self._changed:
                while self._wanted is ticket and len(self._ready) >= self._ahead:
                    self._changed.wait()
                if self._wanted is not ticket:
                    return
                self._ready.append((value, failure))
                self._changed.notify_all()
            if failure is not None:
                return
