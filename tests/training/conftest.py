from __future__ import annotations

from pathlib import Path

import pytest
from folder_store import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> FolderStore:
    (tmp_path / "checkpoints").mkdir()
    return FolderStore(tmp_path / "checkpoints")
