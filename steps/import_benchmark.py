"""Stage: the files of a downloaded benchmark enter the lineage as they are."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from nanocode.evaluation.benchmarks import BenchmarkError, file_sha256


def run(folder: Path, files: Mapping[str, str], output: Path) -> dict[str, int]:
    """Copy `files`, which map names in `folder` to their sha256. Raises BenchmarkError when one is not what it was."""
    for name, sha256 in files.items():
        target = output / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(folder / name, target)
        if file_sha256(target) != sha256:
            raise BenchmarkError(f"{folder / name} was changed while it was read: run the same command again")
    return {"files": len(files), "bytes": sum((output / name).stat().st_size for name in files)}
