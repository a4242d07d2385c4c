"""From a stage's packed rows to the batches of the training loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nanocode.data.loader import RowSource, TokenRows
from nanocode.training.losses import Batch


def batches(sources: Sequence[RowSource], batch_rows: int, seed: int) -> Callable[[int], Batch]:
    """Step -> batch, a pure function of (seed, step). Rows without a mask train on every token but padding."""
    rows = TokenRows(sources, batch_rows, seed)

    def batch(step: int) -> Batch:
        drawn = rows.batch(step)
        segments = drawn.segments if drawn.segments is not None else np.zeros_like(drawn.ids)
        mask = drawn.mask if drawn.mask is not None else np.ones_like(drawn.ids, dtype=np.int8)
        return Batch(drawn.ids, mask, segments)

    return batch
