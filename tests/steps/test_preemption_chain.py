"""Chains of preemptions over real checkpoints, leases and builds: only the store goes from one machine to the next."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from artifacts.build import Build, Built, RunInfo, Stage, build
from artifacts.lease import LeaseLost, lease_name
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.stopping import Interrupted
from nanocode.training.checkpoint import Checkpointer
from nanocode.training.loop import Rules, train
from nanocode.training.step import TrainState

STEPS = 12


def fresh() -> TrainState:
    return TrainState({"x": np.ones(64, np.float32)}, (), np.int32(0))


def step(state: TrainState, rows: np.ndarray) -> tuple[TrainState, dict[str, float]]:
    """Any rule whose result depends on every batch and on their order."""
    x = (state.parameters["x"] * np.float32(0.9) + rows).astype(np.float32)
    return TrainState({"x": x}, (), state.step + 1), {"loss": float(x.mean())}


class Machine:
    """One machine: a folder of its own, and the store that it was given."""

    def __init__(self, root: Path, store: Path) -> None:
        self.root = root
        (root / "steps").mkdir(parents=True)
        (root / "steps" / "__init__.py").touch()
        (root / "steps" / "toy.py").touch()
        self.store = shutil.copytree(store, root / "store") if store.exists() else root / "store"
        self.said: list[str] = []

    def train(self, stop: Callable[[int, Build], bool] = lambda step, making: False) -> Built:
        """Train the toy; `stop` is asked after every step, as a stage asks for a stop or a lost lease."""
        steps: list[int] = []

        def produce(making: Build) -> dict[str, Any]:
            def batch(index: int) -> np.ndarray:
                steps.append(index)
                return np.random.default_rng(index).normal(size=64).astype(np.float32)

            checkpointer = Checkpointer(making.checkpoints)
            asked = Rules(
                stop_requested=lambda: stop(len(steps), making) or making.lease.lost, checkpoint_every_steps=2
            )
            state, journal = train(fresh, step, batch, STEPS, checkpointer=checkpointer, rules=asked)
            checkpointer.close()
            state.parameters["x"].tofile(making.output / "weights")
            (making.output / "metrics.jsonl").write_text("\n".join(journal.lines()))
            return {}

        return build(
            Repository(open_store(f"file:{self.store}")),
            Stage("toy", "model", "toy", "steps.toy", {}),
            produce,
            root=self.root,
            run=RunInfo("f", "1", "u"),
            work_root=self.root / "work",
            report=self.said.append,
        )

    def lease(self) -> Path:
        (path,) = self.store.glob("ckpt/*/lease.json")
        return path


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("undisturbed")
    return Machine(folder / "machine", folder / "none").train().record_digest


def test_a_chain_of_stops_each_on_an_empty_machine_ends_with_the_same_record(undisturbed: str, tmp_path: Path) -> None:
    store, generations = tmp_path / "none", []
    for number in range(3):
        machine = Machine(tmp_path / str(number), store)
        with pytest.raises(Interrupted, match="stopped at step"):
            machine.train(lambda step, making: step >= 3)
        store = machine.store
        generations.append(json.loads(machine.lease().read_bytes()))
    assert [(each["owner"], each["generation"]) for each in generations] == [("", 1), ("", 2), ("", 3)]
    last = Machine(tmp_path / "last", store)
    built = last.train()
    assert built.record_digest == undisturbed
    assert "toy: starts again after 3 interruption(s)" in last.said
    (making,) = Repository(open_store(f"file:{last.store}")).provenances(built.record_digest)
    assert (making.run["interruptions"], making.run["generation"]) == (3, 4)
    assert list(last.store.glob("ckpt/**/*.json")) == []


def test_a_trainer_whose_lease_is_taken_stops_before_it_writes_and_the_taker_ends_with_the_same_record(
    undisturbed: str, tmp_path: Path
) -> None:
    machine = Machine(tmp_path / "one", tmp_path / "none")
    robbed_at: list[int] = []

    def robbed(step: int, making: Build) -> bool:
        if step == 5 and not robbed_at:
            while not list(machine.store.glob("ckpt/*/manifests/1-2.json")):
                time.sleep(0.01)
            held = json.loads(machine.lease().read_bytes())
            thief = json.dumps(held | {"owner": "thief", "generation": 2, "expires": 0.0}).encode()
            making.checkpoints.store.put_bytes(lease_name(making.key), thief)
            robbed_at.append(step)
        return False

    with pytest.raises(LeaseLost, match="thief took it over: stopped before writing"):
        machine.train(robbed)
    saved = [int(path.stem.partition("-")[2]) for path in machine.store.glob("ckpt/*/manifests/1-*.json")]
    assert max(saved) <= robbed_at[0]
    assert list(machine.store.glob("records/*")) == []
    built = machine.train()
    assert built.record_digest == undisturbed
