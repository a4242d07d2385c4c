"""A profile of some steps, on request: what `compute.profile_steps` asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import jax

from nanocode.config import ConfigError


class Tracer:
    """A context for each step; those from `first` to `last` (both included, counting from 1) are profiled into
    `folder`.

    TensorBoard's profile plugin, Perfetto and XProf read it. Raises ConfigError when there is no such step.
    """

    def __init__(self, first: int, last: int, folder: Path, say: Callable[[str], None]) -> None:
        if last < first:
            raise ConfigError(f"compute.profile_steps {first}:{last} ends before it starts: swap the two")
        self._first, self._last, self._folder, self._say = first, last, folder, say
        self._running = False

    @contextmanager
    def __call__(self, step: int) -> Iterator[None]:
        if self._first <= step <= self._last and not self._running:
            self._folder.mkdir(parents=True, exist_ok=True)
            jax.profiler.start_trace(str(self._folder))
            self._running = True
        with jax.profiler.StepTraceAnnotation("step", step_num=step) if self._running else nullcontext():
            yield
        if step >= self._last:
            self.close()

    def close(self) -> None:
        """End the profile, if one is being taken, and say where it lies."""
        if self._running:
            jax.profiler.stop_trace()
            self._running = False
            self._say(f"profile of steps {self._first} to {self._last}: {self._folder}")
