"""Checkpoints of a training state: Orbax writes a local folder, a store given by the caller keeps it.

The caller's store commits a folder atomically (`artifacts.checkpoints` does it with a manifest written last), so a save
that is killed half-way never becomes visible. The training thread only asks for a copy on the device, which the device
makes between two steps; reading it to the host, writing and uploading run in one background thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils

from nanocode.training.sharding import put

_NOTES = "notes.json"


class Manifest(Protocol):
    """A committed checkpoint. `step` numbers it, `details` are what the caller wrote beside it."""

    @property
    def step(self) -> int: ...

    @property
    def details(self) -> Mapping[str, Any]: ...


class Store(Protocol):
    """Where committed checkpoints live, already bound to one piece of work."""

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> Any: ...

    def latest(self, before: int | None = None) -> Manifest | None: ...

    def restore(self, manifest: Any, folder: Path) -> Any: ...

    def prune(self, keep: int, best: str | None = None) -> Any: ...


class CheckpointMismatch(ValueError):
    """A checkpoint that is not of the state it should continue."""


class Saved(NamedTuple):
    """A restored checkpoint: the state, laid out over devices as asked, and the notes saved with it."""

    state: Any
    notes: str


class Checkpointer:
    """Saves and restores one pytree of arrays, with a text of notes, through `store`.

    The newest `keep` stay, and the one with the lowest `best` among the "figures" of its details. With several
    processes each calls every method at the same step; the first one writes, all read.
    """

    def __init__(self, store: Store, keep: int = 2, best: str | None = None) -> None:
        self._store, self._keep, self._best = store, keep, best
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[None] | None = None

    def save(self, number: int, state: Any, notes: Callable[[], str], details: Mapping[str, Any]) -> None:
        """Take the state as it is now and write it in the background, as the checkpoint after all with a lower number.

        `notes` is called in the background. Waits for the save before it, and raises its error.
        """
        self.wait()
        self._pending = self._thread.submit(self._write, number, snapshot(state), notes, dict(details))

    @property
    def busy(self) -> bool:
        """Whether a save is under way, so that the next one would have to wait."""
        return self._pending is not None and not self._pending.done()

    def _write(self, number: int, state: Any, notes: Callable[[], str], details: Mapping[str, Any]) -> None:
        if jax.process_index() != 0:
            return
        with tempfile.TemporaryDirectory(prefix="nanocode-checkpoint-") as scratch:
            folder = Path(scratch) / "checkpoint"
            with _orbax() as writer:
                writer.save(folder / "state", jax.tree.map(np.asarray, state))
            (folder / _NOTES).write_text(notes(), encoding="utf-8")
            self._store.save(number, folder, details)
        self._store.prune(self._keep, self._best)

    def wait(self) -> None:
        """Block until the save under way is committed. Raises what it raised."""
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def restore(self, like: Any, fits: Callable[[Mapping[str, Any]], bool] = lambda details: True) -> Saved | None:
        """The newest committed checkpoint whose details fit, as `like` (`shapes_of` a state) says; None without one.

        Raises CheckpointMismatch.
        """
        manifest = self._store.latest()
        while manifest is not None and not fits(manifest.details):
            manifest = self._store.latest(before=manifest.step)
        return None if manifest is None else self._read(manifest, like)

    def _read(self, manifest: Manifest, like: Any) -> Saved:
        with tempfile.TemporaryDirectory(prefix="nanocode-checkpoint-") as scratch:
            folder = Path(scratch) / "checkpoint"
            self._store.restore(manifest, folder)
            with _orbax() as reader:
                state = reader.restore(folder / "state", _unplaced(like))
            notes = (folder / _NOTES).read_text(encoding="utf-8")
        # Orbax gives back another shape without a word; the state of another model must not be continued.
        if jax.tree.map(np.shape, state) != jax.tree.map(lambda leaf: leaf.shape, like):
            raise CheckpointMismatch(f"checkpoint {manifest.step} holds arrays of other shapes")
        return Saved(jax.tree.map(_place, state, like), notes)

    def close(self) -> None:
        self.wait()
        self._thread.shutdown()


def shapes_of(state: Any) -> Any:
    """A state without its arrays: shapes, types and, of device arrays, where they lie."""
    return jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype, sharding=getattr(leaf, "sharding", None)), state
    )


def snapshot(state: Any) -> Any:
    """A copy of a state whose own buffers the next step may reuse.

    On the device, without waiting for it, where its memory has room for a second state; else, and where other processes
    hold parts of the state, on the host.
    """
    leaves = jax.tree.leaves(state)
    if all(isinstance(leaf, jax.Array) and leaf.is_fully_addressable for leaf in leaves) and _has_room(leaves):
        return _copy(state)
    return jax.tree.map(_on_host, state)


def _has_room(leaves: list[jax.Array]) -> bool:
    """Whether every device could hold the arrays twice at the moment when it holds most."""
    needed: dict[jax.Device, int] = {}
    for leaf in leaves:
        for shard in leaf.addressable_shards:
            needed[shard.device] = needed.get(shard.device, 0) + shard.data.nbytes
    memory = {device: _memory(device) for device in needed}
    return all(
        stats is None or stats["bytes_limit"] - stats["peak_bytes_in_use"] >= needed[device]
        for device, stats in memory.items()
    )


def _memory(device: jax.Device) -> Mapping[str, int] | None:
    """What a device says of its memory; a CPU says nothing."""
    stats: Mapping[str, int] | None = device.memory_stats()
    return stats


@jax.jit
def _copy(state: Any) -> Any:
    return jax.tree.map(jnp.copy, state)


def _on_host(leaf: Any) -> np.ndarray:
    if isinstance(leaf, jax.Array) and not leaf.is_fully_addressable:
        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))
    return np.array(leaf, copy=True)


def _unplaced(like: Any) -> Any:
    """`like` for Orbax: it reads host arrays, which `_place` then lays out."""
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), like)


def _place(array: np.ndarray, like: Any) -> Any:
    if like.sharding is None:
        return array
    if like.sharding == jnp.zeros(()).sharding:
        return jnp.asarray(array)  # not bound to the device, as a fresh state is not: else the step compiles again
    return put(array, like.sharding)


def _orbax() -> ocp.StandardCheckpointer:
    """A checkpointer of this process alone: the others do not take part in what it writes or reads."""
    if jax.process_count() == 1:
        return ocp.StandardCheckpointer()
    own = jax.process_index()
    options = ocp.options.MultiprocessingOptions(own, {own}, f"process-{own}")
    return ocp.StandardCheckpointer(multiprocessing_options=options)
