"""What a card shows of generated data: counted from the artifact's own rows, and what its making cost."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from artifacts.costs import stage_costs, total
from artifacts.repository import Repository, blob_name, fetch_files
from nanocode.constitution.summary import critique_counts, source_counts

GENERATING = ("generate_rollouts", "restyle_instructions")


@dataclass(frozen=True)
class Generated:
    """Counts by what they count; amounts as `artifacts.costs` names them; some rows as they are."""

    counts: Mapping[str, Mapping[str, int]]
    cost: Mapping[str, float]
    examples: tuple[Mapping[str, Any], ...]


def generated(repository: Repository, record: str, examples: int = 2) -> Generated:
    """Look into an artifact of conversations or pairs; of its rows one is in memory at a time.

    Raises ArtifactError for files or records that are missing or altered.
    """
    costs = [each for each in stage_costs(repository, record) if each.step in GENERATING]
    with tempfile.TemporaryDirectory(prefix="nanocode-card-") as folder:
        path = _rows_file(repository, record, Path(folder))
        shown = tuple(islice(_rows(path), examples))
        written = {name: found for name, found in source_counts(_rows(path)).items() if found}
        return Generated(critique_counts(_rows(path)) | written, total(costs), shown)


def _rows_file(repository: Repository, record: str, folder: Path) -> Path:
    (entry,) = [file for file in repository.read_record(record).files if file.path.endswith(".jsonl")]
    fetch_files(repository.store, [entry], folder, blob_name)
    return folder / entry.path


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        for line in lines:
            yield json.loads(line)
