"""One of two processes that train together: PROCESS PORT FOLDER. Each writes its losses and what it saw to FOLDER."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jax
import numpy as np
from layouts import ROWS, VOCAB, batch, device_share, train

from nanocode.config import ComputeConfig
from nanocode.training.batches import RowBatches, placed
from nanocode.training.distributed import COORDINATOR, PROCESS, PROCESSES, agree, join
from nanocode.training.losses import Batch
from nanocode.training.sharding import build_mesh, layout, on_one_device

STEPS = 6


class Rows:
    """The rows of four batches, and which of them were read here."""

    name, weight, row_tokens, masked = "rows", 1.0, 33, True

    def __init__(self) -> None:
        drawn = [batch(step) for step in range(4)]
        self.rows = Batch(*(np.concatenate([getattr(each, field) for each in drawn]) for field in Batch._fields))
        self.read_here: set[int] = set()

    def __len__(self) -> int:
        return len(self.rows.ids)

    def read(self, row: int, ids: np.ndarray, segments: np.ndarray, mask: np.ndarray | None) -> None:
        self.read_here.add(row)
        ids[:], segments[:] = self.rows.ids[row], self.rows.segments[row]
        assert mask is not None
        mask[:] = self.rows.mask[row]


def main() -> None:
    process, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    joined = join({COORDINATOR: f"127.0.0.1:{port}", PROCESSES: "2", PROCESS: str(process)})
    compute = ComputeConfig(mesh_fsdp=4)
    losses, state = train(compute, 4, steps=STEPS)
    mesh = build_mesh(layout(compute, 4), jax.devices())
    source = Rows()
    read = RowBatches([source], ROWS, 1)
    own = placed(read, mesh)(0)
    read_here = len(source.read_here)
    same = all(
        np.array_equal(shard.data, getattr(read(0), field)[shard.index])
        for field in Batch._fields
        for shard in getattr(own, field).addressable_shards
    )
    embedding = on_one_device(state.parameters["embedding"], mesh)
    seen = {
        "joined": joined,
        "losses": losses,
        "share": device_share(state) if process == 0 else None,
        "rows read": read_here,
        "rows are those of the batch": same,
        "agreed": [agree(process == 0), agree(False)],
        "embedding": [embedding.shape == (VOCAB, 64), float(np.sum(np.asarray(embedding, np.float64)))],
    }
    (folder / f"{process}.json").write_text(json.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
