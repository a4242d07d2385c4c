"""The table of public failures in docs/data-engine.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
FAILURES = 19


def test_every_failure_has_a_test_that_there_is() -> None:
    text = (ROOT / "docs" / "data-engine.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text, re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, FAILURES + 1))
    for number, cell in rows:
        named = re.findall(r"`([\w/]+\.py)::(test_\w+)`", cell)
        assert named, f"row {number} names no test"
        for path, name in named:
            source = (ROOT / "tests" / path).read_text(encoding="utf-8")
            assert re.search(rf"^(async )?def {name}\(", source, re.MULTILINE), f"row {number}: no {name} in {path}"
