"""What the drills have in common: kills and what they cost, a child to kill, a look at a store from outside."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

# Temporary files of a file store carry the first letters of the object's name: 16 hex digits are a blob's (or a
# record's), "<generation>-<step>.json" is a checkpoint's manifest.
_BLOB = re.compile(r"[0-9a-f]{16}\.")
_MANIFEST = re.compile(r"\d+-\d+\.json\.")


@dataclass(frozen=True)
class Kill:
    """One kill: where it hit, how the work went on, what was lost."""

    place: str
    resumed: str
    lost_seconds: float
    lost_steps: int | None = None


@dataclass
class Drill:
    """All kills, and the digest of every making that was disturbed against the one that was not."""

    undisturbed: str
    kills: list[Kill] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        return bool(self.digests) and set(self.digests) == {self.undisturbed}


def kill_group(child: subprocess.Popen[bytes]) -> None:
    """SIGKILL to the child and all that it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def wait_for(condition: Callable[[], object], child: subprocess.Popen[bytes], pause_seconds: float = 0.0005) -> bool:
    """Whether the condition came true before the child ended."""
    while not condition():
        if child.poll() is not None:
            return False
        time.sleep(pause_seconds)
    return True


def copied(store: Path, target: Path) -> Path:
    """A copy of a store, as another machine would see it."""
    return shutil.copytree(store, target, ignore=shutil.ignore_patterns(".temporary", ".locks"))


def uploading_a_blob(store: Path) -> bool:
    return any(_BLOB.match(name) for name in _temporary(store))


def committing_a_checkpoint(store: Path) -> bool:
    return any(_MANIFEST.match(name) for name in _temporary(store))


def unsaved_seconds(store: Path, now: float) -> float:
    """Over all work in progress: how long ago it was saved, or started, last."""
    return sum(max(0.0, now - moment) for moment in _last_signs(store))


def unsaved_steps(store: Path, logs: Path) -> int | None:
    """Over all training in progress: steps that its metrics file knows and no checkpoint holds; None without any.

    `logs` holds the stages' folders, as the pipeline names them: `<run>/<name>-<first letters of the key>`.
    """
    found = []
    for attempts in store.glob("ckpt/*/attempts"):
        started, key = max(_times(attempts), default=math.inf), attempts.parent.name
        for path in logs.glob(f"*/*-{key[:12]}/metrics.jsonl"):
            if path.stat().st_mtime >= started:
                lines = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
                manifests = [json.loads(each.read_bytes()) for each in attempts.parent.glob("manifests/*.json")]
                saved = max((manifest["details"]["step"] for manifest in manifests), default=0)
                found.append(max([0, *(line["step"] - saved for line in lines)]))
    return sum(found) if found else None


def _last_signs(store: Path) -> Iterator[float]:
    for attempts in store.glob("ckpt/*/attempts"):
        started = max(_times(attempts), default=None)
        if started is not None:
            yield max([started, *_times(attempts.with_name("manifests"))])


def _times(folder: Path) -> list[float]:
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(path.stat().st_mtime)
    return found


def _temporary(store: Path) -> list[str]:
    try:
        return os.listdir(store / ".temporary")  # noqa: PTH208 - the quickest look there is
    except FileNotFoundError:
        return []
