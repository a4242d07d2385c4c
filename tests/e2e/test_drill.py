"""Fifty kills with SIGKILL, most of a small trainer, ten of the whole pipeline: the end is the same every time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

DRILL = Path(__file__).parents[2] / "benchmarks" / "drill.py"


def drill(folder: Path, *arguments: object) -> dict[str, Any]:
    command = [sys.executable, DRILL, "--store", folder, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=1_800)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_trainer_killed_anywhere_ends_with_the_same_record(tmp_path: Path) -> None:
    result = drill(tmp_path, "--mode", "training", "--kills", 42, "--seed", 7)
    assert (result["kills"], result["digests_equal"]) == (42, True)
    assert result["resumed"] == {"in place": 21, "elsewhere": 21}
    assert {"at random", "blob upload", "checkpoint commit"} <= set(result["places"])
    assert result["lost_steps"]["median"] <= 10, "about two checkpoints' worth"


def test_a_pipeline_killed_in_every_stage_ends_with_the_same_model(tmp_path: Path) -> None:
    result = drill(tmp_path, "--mode", "pipeline", "--kills", 10, "--seed", 3)
    assert (result["kills"], result["digests_equal"]) == (10, True)
    assert result["resumed"] == {"in place": 5, "elsewhere": 5}
