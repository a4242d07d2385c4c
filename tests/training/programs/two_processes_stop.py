"""One of two processes that train together, are stopped and go on: PROCESS PORT FOLDER.

Only process 1 is asked to stop, and only process 0's clock says that a save is due. Each writes what it saw to FOLDER.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from folder_store import FolderStore
from jax.sharding import NamedSharding, PartitionSpec

from nanocode.config import ComputeConfig
from nanocode.stopping import Interrupted
from nanocode.training.checkpoint import Checkpointer
from nanocode.training.distributed import COORDINATOR, PROCESS, PROCESSES, agree, join
from nanocode.training.loop import Rules, train
from nanocode.training.sharding import build_mesh, layout, put
from nanocode.training.step import TrainState

STEPS = 8


def main() -> None:
    process, port, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    join({COORDINATOR: f"127.0.0.1:{port}", PROCESSES: "2", PROCESS: str(process)})
    mesh = build_mesh(layout(ComputeConfig(mesh_fsdp=4), 4), jax.devices())
    split, everywhere = (NamedSharding(mesh, axes) for axes in (PartitionSpec("fsdp"), PartitionSpec()))
    (folder / "store").mkdir(exist_ok=True)
    store = FolderStore(folder / "store")
    now = 0.0

    def fresh() -> TrainState:
        weights = put({"w": np.arange(8, dtype=np.float32)}, {"w": split})
        return TrainState(weights, (), put(np.int32(0), everywhere))

    @jax.jit
    def step(state: TrainState, batch: jax.Array) -> tuple[TrainState, dict[str, jax.Array]]:
        weights = {"w": state.parameters["w"] * 0.9 + batch}
        return TrainState(weights, (), state.step + 1), {"loss": jnp.mean(state.parameters["w"] ** 2)}

    def batch(index: int) -> np.float32:
        nonlocal now
        now += 1.0
        return np.float32(index)

    def run(stop_after: float, checkpointer: Checkpointer | None) -> Any:
        nonlocal now
        now = 0.0
        rules = Rules(
            16.0 if process == 0 else 1e9,
            stop_requested=lambda: process == 1 and now >= stop_after,
            clock=lambda: now,
            agree=agree,
        )
        return train(fresh, step, batch, STEPS, checkpointer=checkpointer, rules=rules)

    undisturbed, _ = run(1e9, None)
    try:
        run(5, Checkpointer(store))
        stopped = "not at all"
    except Interrupted as error:
        stopped = str(error)
    resumed, journal = run(1e9, Checkpointer(store))
    parts = zip(resumed.parameters["w"].addressable_shards, undisturbed.parameters["w"].addressable_shards, strict=True)
    seen = {
        "stopped": stopped,
        "saved": store.saved,
        "steps": [report.step for report in journal.history],
        "redone": now,
        "layout": resumed.parameters["w"].sharding == split,
        "same": [bool(np.array_equal(one.data, other.data)) for one, other in parts],
    }
    (folder / f"{process}.json").write_text(json.dumps(seen))
    jax.distributed.shutdown()


if __name__ == "__main__":
    main()
