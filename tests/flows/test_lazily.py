"""A flow's file is run anew for every task and card: it loads what a command needs, when it is needed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flows.lazily import lazily

ROOT = Path(__file__).parents[2]


def test_a_module_runs_at_the_first_look_at_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "looked_at_late.py").write_text("import sys\nsys.looked_at_late = True\nvalue = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = lazily("looked_at_late")
    assert not hasattr(sys, "looked_at_late")
    assert module.value == 3
    assert lazily("looked_at_late") is module
    del sys.looked_at_late, sys.modules["looked_at_late"]  # type: ignore[attr-defined]


def test_a_module_that_is_not_there_is_missed_at_once() -> None:
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        lazily("no_such_module")


def test_the_flow_loads_neither_its_config_nor_its_stages_before_it_needs_them() -> None:
    command = [sys.executable, "-X", "importtime", ROOT / "flows" / "full_pipeline.py", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    loaded = set(re.findall(r"\| +(\S+)$", done.stderr, flags=re.MULTILINE))
    assert "flows.task" in loaded
    assert not {"pydantic", "nanocode.config", "artifacts.build", "flows.cards"} & loaded
