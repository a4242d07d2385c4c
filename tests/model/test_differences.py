"""docs/differences.md says of the model what the code does."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from nanocode.config import ModelConfig

ROOT = Path(__file__).resolve().parents[2]
SIZES = {"recipe", "depth", "width", "heads", "kv_heads", "context_tokens", "mlp_ratio", "dtype"}


def table() -> dict[str, dict[str, str]]:
    """column -> field -> value, from the table of the fields of ``[model]``."""
    lines = (ROOT / "docs/differences.md").read_text(encoding="utf-8").splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("| field of `[model]`"))
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split("|")])
    header, _, *body = rows
    return {column: {row[0]: row[position] for row in body} for position, column in enumerate(header) if position}


def shown(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.10g}" if isinstance(value, float) else str(value)


@pytest.mark.parametrize("column", ["nanochat", "nanocode", "nano"])
def test_the_table_of_model_fields_is_true(column: str) -> None:
    if column == "nano":
        values = tomllib.loads((ROOT / "configs/nano.toml").read_text(encoding="utf-8"))["model"]
    else:
        values = {"recipe": column, "depth": 12}
    config = ModelConfig.model_validate(values).identity()
    assert table()[column] == {name: shown(value) for name, value in config.items() if name not in SIZES}
