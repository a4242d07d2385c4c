"""The ledger of a rollout stage between attempts: on this machine to the last request, in the store now and then.

The files live in a folder of this machine that belongs to the stage's key and outlives the process, so that a kill at
any moment loses no answer to who starts again here. Checkpoints in the store carry them to other machines; what such a
machine is asked for twice is what was answered after the last one.
"""

from __future__ import annotations

import gzip
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from artifacts.build import Build
from steps.pipeline.run import Run

LEDGERS, ACCOUNTS = "*.jsonl", "*.accounts"


class Answers:
    """Answered requests and what was spent on them: `folder` holds what is known here and in the newest checkpoint."""

    def __init__(self, run: Run, making: Build) -> None:
        self.folder = run.work / "ledgers" / making.key
        self.folder.mkdir(parents=True, exist_ok=True)
        self._checkpoints, self._compute = making.checkpoints, run.config.compute
        saved = making.checkpoints.latest()
        if saved is not None:
            with tempfile.TemporaryDirectory(dir=making.scratch) as elsewhere:
                unite(self._checkpoints.restore(saved, Path(elsewhere)), self.folder)
        if answered := self._lines(LEDGERS):
            run.say(f"generate_rollouts: {answered:,} requests were answered before and are not repeated")
        self._saved_at = time.monotonic()

    def save(self) -> None:
        """Checkpoint the files if there is anything in them."""
        if written := self._lines(LEDGERS) + self._lines(ACCOUNTS):
            self._checkpoints.save(written, self.folder, {})
            self._checkpoints.prune(self._compute.keep_checkpoints)
        self._saved_at = time.monotonic()

    def save_when_due(self) -> None:
        """Checkpoint if the last one is old enough."""
        if time.monotonic() - self._saved_at >= self._compute.checkpoint_every_seconds:
            self.save()

    def write(self, path: Path) -> None:
        """All answers, compressed and sorted: they came in any order, and what is kept must not depend on it."""
        lines = [line for ledger in self.folder.glob(LEDGERS) for line in ledger.read_bytes().splitlines(True)]
        path.write_bytes(gzip.compress(b"".join(sorted(lines)), mtime=0))

    def forget(self) -> None:
        """Remove the files from this machine: for when their answers are an artifact."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _lines(self, pattern: str) -> int:
        return sum(_line_count(path) for path in self.folder.glob(pattern))


def entries(ledger_file: Path) -> Iterator[tuple[str, str]]:
    """Key and raw answer of every request in a ledger."""
    from nanocode.constitution.ledger import Ledger

    with Ledger(ledger_file) as ledger:
        for key in ledger:
            raw = ledger.get(key)
            assert raw is not None, f"{ledger_file}: a key of the ledger has no answer"
            yield key, raw


def _line_count(path: Path) -> int:
    with path.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(1 << 20), b""))


def unite(elsewhere: Path, here: Path) -> None:
    """Add to the ledgers `here` the answers that those `elsewhere` have beyond them, and take the longer accounts.

    Accounts are histories that only grow, and of two the longer one goes on from where the other one stopped.
    """
    from nanocode.constitution.ledger import Ledger

    for path in sorted(elsewhere.glob(LEDGERS)):
        with Ledger(here / path.name) as target:
            for key, raw in entries(path):
                target.put(key, raw)  # the first one put under a key stays
    for path in sorted(elsewhere.glob(ACCOUNTS)):
        known = here / path.name
        if not known.exists() or known.stat().st_size < path.stat().st_size:
            shutil.copyfile(path, known)
