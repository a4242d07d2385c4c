"""The drill of a trainer: many kills in little time, through the real loop, checkpoints, lease and commit.

As a script, it is the child to be killed: `drill_training.py STORE WORK`.
"""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from drill_report import (
    Drill,
    Kill,
    committing_a_checkpoint,
    copied,
    kill_group,
    unsaved_seconds,
    uploading_a_blob,
    wait_for,
)

STEPS, SAVE_EVERY, STEP_SECONDS = 80, 4, 0.02
NUMBERS = 100_000  # of the state: 0.4 MB
LONGEST_DELAY_SECONDS = 1.5
PLACES = ("at random", "blob upload", "checkpoint commit", "at random", "record commit", "clearing up")


def drill_training(folder: Path, kills: int, seed: int, say: Callable[[str], None]) -> Drill:
    """Make the same thing again and again, killed on the way, until it was killed so often."""
    rng = random.Random(seed)
    first = Making(folder / "undisturbed")
    first.start().wait()
    drill = Drill(first.digest())
    say(f"undisturbed: record {drill.undisturbed[:12]}")
    making, attempts = Making(folder / "making-0"), 0
    while len(drill.kills) < kills or not making.is_done:
        place = rng.choice(PLACES) if len(drill.kills) < kills else ""
        kill = making.disturb(place, rng, "in place" if len(drill.kills) % 2 else "elsewhere")
        attempts += 1
        if kill is not None:
            drill.kills.append(kill)
            say(f"kill {len(drill.kills):>3}: {kill.place}, {kill.lost_steps} steps lost, goes on {kill.resumed}")
        if making.is_done:
            drill.digests.append(making.digest())
            say(f"made: record {drill.digests[-1][:12]} after {making.attempts} attempts")
            if len(drill.kills) < kills:
                making = Making(folder / f"making-{attempts}")
    return drill


class Making:
    """One making of the record, however many attempts it takes; each attempt may have another folder and store."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.attempts = folder, 0
        self._work = folder / "machine-0"
        self._work.mkdir(parents=True)
        self.store = self._work / "store"
        self._before: list[int] = []

    @property
    def is_done(self) -> bool:
        return any(self.store.glob("keys/*.json"))

    def digest(self) -> str:
        (record,) = self.store.glob("records/*.json")
        return record.stem

    def start(self) -> subprocess.Popen[bytes]:
        """Start an attempt. It notes each step that it takes in a file of its own."""
        self.attempts += 1
        command = [sys.executable, __file__, str(self.store), str(self._work), str(self._steps_file())]
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)

    def disturb(self, place: str, rng: random.Random, resumed: str) -> Kill | None:
        """Start an attempt and kill it at a place ("": let it live); None when it ended before."""
        child = self.start()
        steps = self._steps_file()
        is_hit = bool(place) and wait_for(steps.exists, child) and wait_for(self._moment(place, rng), child)
        now = time.time()
        if is_hit:
            kill_group(child)
        elif child.wait() != 0:
            raise RuntimeError(f"an attempt that nobody killed ended with status {child.returncode}")
        taken = [int(line) for line in steps.read_text().split()] if steps.exists() else []
        if not is_hit:
            return None
        lost_seconds = 0.0 if self.is_done else unsaved_seconds(self.store, now)
        lost_steps = self._lost_steps(taken)
        if resumed == "elsewhere":
            self._move()
        return Kill(place, resumed, lost_seconds, lost_steps)

    def _lost_steps(self, taken: list[int]) -> int:
        """Steps that were taken and are in no checkpoint."""
        saved = [int(path.stem.partition("-")[2]) for path in self.store.glob("ckpt/*/manifests/*.json")]
        done = STEPS if self.is_done else max(saved, default=0)
        return max(0, max(taken, default=-1) + 1 - done)

    def _moment(self, place: str, rng: random.Random) -> Callable[[], bool]:
        if place == "at random":
            end = time.monotonic() + rng.uniform(0, LONGEST_DELAY_SECONDS)
            return lambda: time.monotonic() >= end
        skipped = iter(range(rng.randrange(3)))  # not always the first one
        seen = {
            "blob upload": lambda: uploading_a_blob(self.store) and next(skipped, None) is None,
            "checkpoint commit": lambda: committing_a_checkpoint(self.store) and next(skipped, None) is None,
            "record commit": lambda: any(self.store.glob("records/*")) and not self.is_done,
            "clearing up": lambda: self.is_done and any(self.store.glob("ckpt/*/*/*")),
        }
        return seen[place]

    def _steps_file(self) -> Path:
        return self._work / f"steps-{self.attempts}.txt"

    def _move(self) -> None:
        """The next attempt has nothing but a copy of the store."""
        self._work = self._folder / f"machine-{self.attempts}"
        self._work.mkdir()
        self.store = copied(self.store, self._work / "store")


def work(store: Path, folder: Path, noted: Path) -> None:
    """Train and commit, going on from the newest checkpoint of the store."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
    import numpy as np

    from artifacts.build import Build, RunInfo, Stage, build
    from artifacts.repository import Repository
    from artifacts.store import open_store
    from nanocode.training.checkpoint import Checkpointer
    from nanocode.training.loop import Rules, train
    from nanocode.training.step import TrainState

    def fresh() -> TrainState:
        return TrainState({"x": np.ones(NUMBERS, np.float32)}, (), np.int32(0))

    def step(state: TrainState, rows: Any) -> tuple[TrainState, dict[str, float]]:
        """Any rule whose result depends on every batch and on their order."""
        time.sleep(STEP_SECONDS)
        x = (state.parameters["x"] * np.float32(0.9) + rows).astype(np.float32)
        return TrainState({"x": x}, (), state.step + 1), {"loss": float(x.mean())}

    def batch(index: int) -> Any:
        with noted.open("a") as file:
            file.write(f"{index}\n")
        return np.random.default_rng(index).normal(size=NUMBERS).astype(np.float32)

    def produce(making: Build) -> Mapping[str, Any]:
        checkpointer = Checkpointer(making.checkpoints)
        rules = Rules(stop_requested=lambda: making.lease.lost, checkpoint_every_steps=SAVE_EVERY)
        state, _ = train(fresh, step, batch, STEPS, checkpointer=checkpointer, rules=rules)
        checkpointer.close()
        state.parameters["x"].tofile(making.output / "weights")
        return {}

    root = Path(__file__).resolve().parents[1]
    build(
        Repository(open_store(f"file:{store}")),
        Stage("drill", "model", "drill", "nanocode.training.loop", {}),
        produce,
        root=root,
        run=RunInfo("drill", "1", "drill"),
        work_root=folder / "work",
    )


if __name__ == "__main__":
    work(*map(Path, sys.argv[1:]))
