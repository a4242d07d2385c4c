"""From a stage's packed rows to the batches of the training loop, and from there onto the devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from nanocode.data.loader import RowSource, TokenRows
from nanocode.training.accumulation import part_count
from nanocode.training.losses import Batch
from nanocode.training.sharding import ROWS, check_rows, layout_of, put


class RowBatches:
    """Step -> batch, a pure function of (seed, step). Rows without a mask train on every token but padding."""

    def __init__(self, sources: Sequence[RowSource], batch_rows: int, seed: int) -> None:
        self._rows = TokenRows(sources, batch_rows, seed)
        self.batch_rows = batch_rows

    def __call__(self, step: int, start: int = 0, stop: int | None = None) -> Batch:
        """Rows `start` to `stop` of the batch of a step: all of them, or what one process needs."""
        drawn = self._rows.batch(step, start, stop)
        segments = drawn.segments if drawn.segments is not None else np.zeros_like(drawn.ids)
        mask = drawn.mask if drawn.mask is not None else np.ones_like(drawn.ids, dtype=np.int8)
        return Batch(drawn.ids, mask, segments)


def batches(sources: Sequence[RowSource], batch_rows: int, seed: int) -> RowBatches:
    """The batches of packed rows, drawn from the sources by weight."""
    return RowBatches(sources, batch_rows, seed)


def placed(batch: Callable[[int], Any], mesh: Mesh | None) -> Callable[[int], Any]:
    """`batch` with its rows split over the mesh; without one, `batch` itself. Of several processes each reads the rows
    of its own devices.

    Raises ConfigError, when a batch is asked for, if its rows do not divide over the mesh.
    """
    if mesh is None:
        return batch
    sharding = NamedSharding(mesh, PartitionSpec(ROWS))
    if isinstance(batch, RowBatches) and not sharding.is_fully_addressable:
        check_rows(layout_of(mesh), batch.batch_rows)
        return lambda step: _own_rows(batch, step, sharding)

    def whole(step: int) -> Any:
        host = batch(step)
        part_count(host, layout_of(mesh), None)
        return put(host, jax.tree.map(lambda leaf: sharding, host))

    return whole


def _own_rows(batch: RowBatches, step: int, sharding: NamedSharding) -> Batch:
    """A batch over all processes, of which this one has read only what its devices hold."""
    rows = batch.batch_rows
    own = {index[0].indices(rows)[:2] for index in sharding.addressable_devices_indices_map((rows,)).values() if index}
    parts = {start: batch(step, start, stop) for start, stop in sorted(own)}

    def joined(field: str) -> jax.Array:
        def part(index: Any) -> np.ndarray:
            return getattr(parts[index[0].indices(rows)[0]], field)

        width = part((slice(*min(own)),)).shape[1]
        return jax.make_array_from_callback((rows, width), sharding, part)

    return Batch(joined("ids"), joined("mask"), joined("segments"))
