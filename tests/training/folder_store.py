"""A checkpoint store in a folder, as the loop and the checkpointer see one."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class FolderManifest:
    step: int
    folder: Path
    details: Mapping[str, Any]


class FolderStore:
    """Commits by rename; `failing` makes saves raise, `saved` lists every step that was committed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.failing: Exception | None = None
        self.saved: list[int] = []
        self.pruned: list[int] = []

    def save(self, step: int, folder: Path, details: Mapping[str, Any]) -> None:
        if self.failing is not None:
            raise self.failing
        (folder / "details").write_text(json.dumps(details))
        shutil.copytree(folder, self.root / "partial")
        (self.root / "partial").rename(self.root / f"{step:09}")
        self.saved.append(step)

    def latest(self, before: int | None = None) -> FolderManifest | None:
        folders = [each for each in sorted(self.root.glob("[0-9]*")) if before is None or int(each.name) < before]
        if not folders:
            return None
        return FolderManifest(int(folders[-1].name), folders[-1], json.loads((folders[-1] / "details").read_text()))

    def restore(self, manifest: FolderManifest, folder: Path) -> None:
        shutil.copytree(manifest.folder, folder)

    def prune(self, keep: int, best: str | None = None) -> None:
        del best
        self.pruned.append(keep)
        for folder in sorted(self.root.glob("[0-9]*"))[:-keep]:
            shutil.rmtree(folder)
