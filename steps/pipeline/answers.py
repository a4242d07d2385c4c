"""The ledger of a stage that asks endpoints, between attempts: on this machine to the last request, in the store now
and then.

The files live in a folder of this machine that belongs to the stage's key and outlives the process, so that a kill at
any moment loses no answer to who starts again here. Checkpoints in the store carry them to other machines, in segments
of which only the newest is new; what such a machine is asked for twice is what was answered after the last one.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from artifacts.build import Build
from artifacts.checkpoints import CheckpointStore, Manifest
from nanocode.constitution.ledger import Answer, Ledger
from steps.pipeline.run import Run
from steps.pipeline.segments import cut, join, write_sorted

LEDGERS, ACCOUNTS = "*.jsonl", "*.accounts"
CALLS = "calls.jsonl.gz"


class Answers:
    """Answered requests and what was spent on them: `folder` holds what is known here and in the newest checkpoint."""

    def __init__(self, run: Run, making: Build) -> None:
        self.folder = ledgers_folder(run) / making.key
        self.folder.mkdir(parents=True, exist_ok=True)
        self._checkpoints, self._compute, self._scratch = making.checkpoints, run.config.compute, making.scratch
        self._segments = Path(tempfile.mkdtemp(prefix="segments-", dir=making.scratch))
        saved = making.checkpoints.latest()
        if saved is not None:
            with tempfile.TemporaryDirectory(dir=making.scratch) as elsewhere:
                unite(restored(making.checkpoints, saved, Path(elsewhere)), self.folder)
        if answered := sum(_line_count(path) for path in self.folder.glob(LEDGERS)):
            run.say(f"{making.stage.step}: {answered:,} requests were answered before and are not repeated")
        self._saved_at = time.monotonic()

    def save(self) -> None:
        """Checkpoint the files if there is anything in them."""
        files = [path for pattern in (LEDGERS, ACCOUNTS) for path in sorted(self.folder.glob(pattern))]
        if written := sum(path.stat().st_size for path in files):
            for path in files:
                cut(path, self._segments)
            self._checkpoints.save(written, self._segments, {})
            self._checkpoints.prune(self._compute.keep_checkpoints)
        self._saved_at = time.monotonic()

    def save_when_due(self) -> None:
        """Checkpoint if the last one is old enough."""
        if time.monotonic() - self._saved_at >= self._compute.checkpoint_every_seconds:
            self.save()

    def write(self, path: Path) -> None:
        """All answers, compressed and sorted: they came in any order, and what is kept must not depend on it."""
        write_sorted(sorted(self.folder.glob(LEDGERS)), path, self._scratch)

    def forget(self) -> None:
        """Remove the files from this machine: for when their answers are an artifact."""
        shutil.rmtree(self.folder, ignore_errors=True)


def ledgers_folder(run: Run) -> Path:
    """Where this machine keeps ledgers, in a folder for each stage's key."""
    return run.work / "ledgers"


def restored(checkpoints: CheckpointStore, saved: Manifest, folder: Path) -> Path:
    """The folder inside `folder` that holds a checkpoint's ledgers and accounts. Raises ArtifactError."""
    segments, whole = folder / "segments", folder / "whole"
    whole.mkdir(parents=True)
    join(checkpoints.restore(saved, segments), whole)
    return whole


def entries(ledger_file: Path) -> Iterator[Answer]:
    """Every answer in a ledger."""
    with Ledger(ledger_file) as ledger:
        yield from ledger.answers()


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def unite(elsewhere: Path, here: Path) -> None:
    """Add to the ledgers `here` the answers that those `elsewhere` have beyond them, and take the longer accounts.

    Accounts are histories that only grow, and of two the longer one goes on from where the other one stopped.
    """
    for path in sorted(elsewhere.glob(LEDGERS)):
        with Ledger(here / path.name) as target:
            for answer in entries(path):
                target.put(answer.key, answer.raw, answer.question, answer.bound)  # the first one put under a key stays
    for path in sorted(elsewhere.glob(ACCOUNTS)):
        known = here / path.name
        if not known.exists() or known.stat().st_size < path.stat().st_size:
            shutil.copyfile(path, known)
