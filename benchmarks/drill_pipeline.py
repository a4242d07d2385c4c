"""The drill of the whole pipeline: every stage is killed, with the orchestrator and all that they started."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drill_report import (
    Drill,
    Kill,
    committing_a_checkpoint,
    copied,
    kill_group,
    unsaved_seconds,
    unsaved_steps,
    uploading_a_blob,
    wait_for,
)

ROOT = Path(__file__).resolve().parents[1]
FLOW = ROOT / "flows" / "full_pipeline.py"
SAVING = "compute.checkpoint_every_seconds=0.5"
# In the order of the flow. The second word: kill inside such a write, not at a random moment.
PLACES = (
    ("shard_data", ""),
    ("fit_tokenizer", ""),
    ("pretrain", ""),
    ("pretrain", "checkpoint commit"),
    ("generate_rollouts", ""),
    ("sft", ""),
    ("sft", "blob upload"),
    ("dpo", ""),
    ("evaluate", ""),
    ("release", ""),
)
# Made several times, of which some may be found and others not: over when one of these stages has begun.
_FOLLOWED_BY = {
    "shard_data": ("fit_tokenizer",),
    "generate_rollouts": ("sft", "dpo", "release"),
    "evaluate": ("release",),
}
_LINE = re.compile(r"(?:\)\] )?(\w+): (starts|made \w+, [\d,]+ bytes, ([\d.]+) s)")


@dataclass(frozen=True)
class Machine:
    """A folder with a store and Metaflow's files, and what was said there."""

    folder: Path

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def start(self, command: Sequence[object], log: Path) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own."""
        own = {
            "NANOCODE_STORE": f"file:{self.store}",
            "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(self.folder),
            "METAFLOW_USER": "drill",
        }
        with log.open("wb") as stream:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.folder,
                env={**os.environ, **own},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def digest(self) -> str:
        """The record of the newest release."""
        done = subprocess.run(
            [sys.executable, "-m", "nanocode.cli", "models", "--json", "--store", f"file:{self.store}"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return str(json.loads(done.stdout)[-1]["digest"])


def drill_pipeline(folder: Path, config: Path, kills: int, seed: int, say: Callable[[str], None]) -> Drill:
    """Run the pipeline once undisturbed, then again, killed in one stage after the other, until it was killed so often.

    Raises RuntimeError when a run that nobody killed fails.
    """
    rng, folder, config = random.Random(seed), folder.absolute(), config.absolute()
    command = [sys.executable, FLOW, "--config", "config", config, "run", "--override", SAVING]
    first = _machine(folder / "undisturbed")
    seconds = _seconds_of_stages(_finish(*_started(first, command)))
    drill = Drill(first.digest())
    say(f"undisturbed: record {drill.undisturbed[:12]}")
    while len(drill.kills) < kills:
        number = len(drill.digests)
        chosen = _plan(rng, kills - len(drill.kills))
        drill.digests.append(_disturbed(folder / f"disturbed-{number}", command, chosen, seconds, rng, drill, say))
        say(f"made: record {drill.digests[-1][:12]}")
    return drill


def _plan(rng: random.Random, kills: int) -> list[tuple[str, str]]:
    """At most so many places, in the order of the flow."""
    if kills >= len(PLACES):
        return list(PLACES)
    return [PLACES[index] for index in sorted(rng.sample(range(len(PLACES)), kills))]


def _disturbed(
    folder: Path,
    command: list[object],
    places: Sequence[tuple[str, str]],
    seconds: Mapping[str, float],
    rng: random.Random,
    drill: Drill,
    say: Callable[[str], None],
) -> str:
    """One making, killed at each place in turn; the digest that it ends with."""
    machine, now = _machine(folder / "machine-0"), command
    child, log = _started(machine, now)
    for stage, write in places:
        moment = _Moment(machine.store, log, stage, write, rng.uniform(0, 0.5 * seconds.get(stage, 0.0)))
        if not wait_for(moment, child, 0.001) or moment.is_missed:
            say(f"{stage} was over before it could be killed{f' in a {write}' if write else ''}")
            continue
        killed_at = time.time()
        kill_group(child)
        place = " + ".join(_running(log)) or f"after {stage}"
        goes_on = "in place" if len(drill.kills) % 2 else "elsewhere"
        lost = unsaved_seconds(machine.store, killed_at)
        steps = unsaved_steps(machine.store, ROOT / ".nanocode" / "logs")
        drill.kills.append(Kill(f"{place}, {write}" if write else place, goes_on, lost, steps))
        say(f"kill {len(drill.kills):>3}: {drill.kills[-1].place}, {lost:.1f} s lost, goes on {goes_on}")
        now = [*command[:2], "resume"]
        if goes_on == "elsewhere":
            other = _machine(folder / f"machine-{len(drill.kills)}")
            copied(machine.store, other.store)
            machine, now = other, command
        child, log = _started(machine, now)
    _finish(child, log)
    return machine.digest()


class _Moment:
    """The moment to kill: some time into a stage, or inside a write that it makes; or the stage was over before."""

    def __init__(self, store: Path, log: Path, stage: str, write: str, delay_seconds: float) -> None:
        self._store, self._log, self._stage, self._write = store, log, stage, write
        self._delay, self._end = delay_seconds, 0.0
        self.is_missed = False

    def __call__(self) -> bool:
        is_running = self._stage in _running(self._log)
        if is_running and not self._end:
            self._end = time.monotonic() + self._delay
        self.is_missed = not is_running and (bool(self._end) or _is_over(self._log, self._stage))
        if not is_running or self.is_missed:
            return self.is_missed
        if self._write == "blob upload":
            return uploading_a_blob(self._store)
        if self._write == "checkpoint commit":
            return committing_a_checkpoint(self._store)
        return time.monotonic() >= self._end


def _is_over(log: Path, stage: str) -> bool:
    """Whether a log says that a stage was found, every making of it."""
    text = log.read_text(encoding="utf-8", errors="replace")
    if stage in _FOLLOWED_BY:
        return any(f"{later}: {event}" in text for later in _FOLLOWED_BY[stage] for event in ("starts", "cached"))
    return f"{stage}: cached" in text


def _running(log: Path) -> list[str]:
    """The stages that a log says were started and not made."""
    running: dict[str, int] = {}
    for stage, event, _ in _LINE.findall(log.read_text(encoding="utf-8", errors="replace")):
        running[stage] = running.get(stage, 0) + (1 if event == "starts" else -1)
    return [stage for stage, count in running.items() if count > 0]


def _seconds_of_stages(output: str) -> dict[str, float]:
    """How long the stages took that a run made: of several of one name the shortest."""
    found: dict[str, float] = {}
    for stage, _, seconds in _LINE.findall(output):
        if seconds:
            found[stage] = min(found.get(stage, float(seconds)), float(seconds))
    return found


def _machine(folder: Path) -> Machine:
    folder.mkdir(parents=True)
    return Machine(folder)


def _started(machine: Machine, command: Sequence[object]) -> tuple[subprocess.Popen[bytes], Path]:
    """A command under way, and its log."""
    log = machine.folder / f"log-{time.monotonic_ns()}.txt"
    return machine.start(command, log), log


def _finish(child: subprocess.Popen[bytes], log: Path) -> str:
    """Wait for the end; the output."""
    status, output = child.wait(), log.read_text(encoding="utf-8", errors="replace")
    if status:
        raise RuntimeError(f"a run that nobody killed ended with status {status}: see {log}\n{output[-2000:]}")
    return output
