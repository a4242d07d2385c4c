"""Checkpoints of a training state: Orbax writes a local folder, a store given by the caller keeps it.

The caller's store commits a folder atomically (`artifacts.checkpoints` does it with a manifest written last), so a save
that is killed half-way never becomes visible. Saving runs in one background thread: training goes on meanwhile.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import orbax.checkpoint as ocp


class Manifest(Protocol):
    """A committed checkpoint."""

    @property
    def step(self) -> int: ...


class Store(Protocol):
    """Where committed checkpoints live, already bound to one piece of work."""

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> Any: ...

    def latest(self) -> Manifest | None: ...

    def restore(self, manifest: Any, folder: Path) -> Any: ...

    def prune(self, keep: int) -> Any: ...


class CheckpointMismatch(ValueError):
    """A checkpoint that is not of the state it should continue."""


class Checkpointer:
    """Saves and restores one pytree of arrays through `store`."""

    def __init__(self, store: Store, keep: int = 2) -> None:
        self._store, self._keep = store, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, step: int, state: Any) -> None:
        """Copy `state` off the device and write it in the background; waits for the save before it, and raises its
        error.
        """
        self.wait()
        on_host = jax.tree.map(lambda array: np.array(array, copy=True), state)  # the device buffer is donated next
        self._pending = self._thread.submit(self._write, step, on_host)

    def _write(self, step: int, state: Any) -> None:
        with tempfile.TemporaryDirectory(prefix="nanocode-checkpoint-") as scratch:
            folder = Path(scratch) / "state"
            with ocp.StandardCheckpointer() as writer:
                writer.save(folder, state)
            self._store.save(step, folder, {})
        self._store.prune(self._keep)

    def wait(self) -> None:
        """Block until the save under way is committed. Raises what it raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def restore(self, like: Any) -> Any | None:
        """The newest committed state, shaped and typed as `like`; None when there is none. Raises
        CheckpointMismatch.
        """
        manifest = self._store.latest()
        if manifest is None:
            return None
        with tempfile.TemporaryDirectory(prefix="nanocode-checkpoint-") as scratch:
            folder = Path(scratch) / "state"
            self._store.restore(manifest, folder)
            target = jax.tree.map(lambda array: jax.ShapeDtypeStruct(np.shape(array), array.dtype), like)
            with ocp.StandardCheckpointer() as reader:
                state = reader.restore(folder, target)
        # Orbax gives back another shape without a word; the state of another model must not be continued.
        if jax.tree.map(np.shape, state) != jax.tree.map(np.shape, like):
            raise CheckpointMismatch(f"the checkpoint of step {manifest.step} holds arrays of other shapes")
        return state

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()
