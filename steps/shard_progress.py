"""The progress of sharding: what is saved at each boundary of the shards, and how a later attempt finds it."""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nanocode.data.deduplicate import Deduplicator, Fingerprint
from nanocode.data.shards import SPLITS, Split, SplitCount
from nanocode.data.tally import Tally
from steps.pace import Pace

if TYPE_CHECKING:  # how progress is kept is no part of what this stage makes
    from artifacts.checkpoints import CheckpointStore

FOLDER = "progress"  # inside the output until the stage is done
_SEEN = pa.schema([("digest", pa.binary()), ("signature", pa.binary())])


@dataclass(frozen=True)
class Saving:
    """Where progress is kept, and how often at most it is saved there."""

    checkpoints: CheckpointStore
    every_seconds: float
    keep: int = 1
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Place:
    """A place in a source: where a block begins (None: the first), and how many of its documents are done."""

    block: Mapping[str, Any] | None = None
    documents: int = 0


@dataclass
class State:
    """All that the rest of the work depends on, besides the shards and the fingerprints of what is in them."""

    place: Place = field(default_factory=Place)
    tally: Tally = field(default_factory=Tally)
    counts: Mapping[Split, SplitCount] = field(default_factory=lambda: {split: SplitCount() for split in SPLITS})


class Segments:
    """The progress folder of one attempt. A segment is what lies between two moments when all shards are closed."""

    def __init__(self, output: Path, saving: Saving | None) -> None:
        self._output, self._folder, self._saving = output, output / FOLDER, saving
        self._seen: list[Fingerprint] = []
        self._segments = self._read_documents = 0
        self._counts: Mapping[Split, SplitCount] = {}
        self._pace = Pace(saving.every_seconds, saving.clock) if saving else None

    def restore(self, deduplicator: Deduplicator) -> State | None:
        """The newest saved state, its shards put into the output and its texts known to `deduplicator`."""
        manifest = self._saving.checkpoints.latest() if self._saving else None
        if manifest is None or self._saving is None:
            return None
        self._saving.checkpoints.restore(manifest, self._output)
        paths = sorted(self._folder.glob("seen-*.parquet"))
        for path in paths:
            for row in pq.read_table(path).to_pylist():
                signature = row["signature"]
                known = None if signature is None else np.frombuffer(signature, dtype=np.uint32)
                deduplicator.remember(Fingerprint(row["digest"], known))
        self._segments = len(paths)
        saved = json.loads((self._folder / "state.json").read_text(encoding="utf-8"))
        self._counts = {split: SplitCount(**saved["counts"][split]) for split in SPLITS}
        state = State(Place(**saved["place"]), Tally.from_json(saved["tally"]), self._counts)
        self._read_documents = state.tally.read_documents
        return state

    def add(self, known_by: Fingerprint | None) -> None:
        """A text went into the open shards."""
        if self._saving is not None and known_by is not None:
            self._seen.append(known_by)

    def close(self, state: State) -> None:
        """All shards are closed: write down the state, and save it if the last time is long enough ago."""
        if self._saving is None:
            return
        self._folder.mkdir(exist_ok=True)
        rows = [
            {"digest": each.digest, "signature": None if each.signature is None else each.signature.tobytes()}
            for each in self._seen
        ]
        pq.write_table(pa.Table.from_pylist(rows, schema=_SEEN), self._folder / f"seen-{self._segments:05d}.parquet")
        self._segments, self._seen = self._segments + 1, []
        values = {
            "place": asdict(state.place),
            "tally": state.tally.to_json(),
            "counts": {split: asdict(count) for split, count in state.counts.items()},
        }
        (self._folder / "state.json").write_text(json.dumps(values), encoding="utf-8")
        self._counts = {split: replace(count) for split, count in state.counts.items()}
        self._read_documents = state.tally.read_documents
        if self._pace is not None and self._pace.is_due:
            self.save()

    def save(self) -> None:
        """Save what lay in whole files when the shards were last closed; nothing when they never were."""
        if self._saving is None or self._pace is None or not self._segments:
            return
        parent = self._output.parent
        with self._pace.saving(), tempfile.TemporaryDirectory(prefix="whole-", dir=parent) as folder:
            for path in self._whole_files():
                target = Path(folder) / path.relative_to(self._output)
                target.parent.mkdir(exist_ok=True)
                target.hardlink_to(path)
            self._saving.checkpoints.save(self._read_documents, Path(folder), {})
            self._saving.checkpoints.prune(self._saving.keep)

    def _whole_files(self) -> list[Path]:
        shards = [
            self._output / f"{split}-{number:05d}.parquet"
            for split, count in self._counts.items()
            for number in range(count.shards)
        ]
        return [*shards, *self._folder.iterdir()]

    def remove(self) -> None:
        """The stage is done: its progress is no part of what it made."""
        shutil.rmtree(self._folder, ignore_errors=True)
