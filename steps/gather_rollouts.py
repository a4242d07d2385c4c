"""Stage: the shards of generated data become one artifact, in an order that does not depend on how many there were."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nanocode.constitution.rules import BEST_SCORE
from nanocode.evaluation.intervals import Rate


class NoData(ValueError):
    """Generation left nothing to train on."""


def run(split: str, shards: Sequence[Path], output: Path) -> dict[str, Any]:
    """Write ``conversations.jsonl`` (split sft) or ``pairs.jsonl`` (preference), sorted by id, and ``report.json``.

    The report adds up the shards' counts and, for SFT data, states each register's own SOUL adherence. Raises NoData.
    """
    name = "conversations.jsonl" if split == "sft" else "pairs.jsonl"
    rows = sorted((json.loads(line) for shard in shards for line in _lines(shard / name)), key=lambda row: row["id"])
    report = _added([json.loads((shard / "report.json").read_text(encoding="utf-8")) for shard in shards])
    if not rows:
        raise NoData(f"no {split} data was accepted; dropped: {report.get('dropped', {})}")
    with (output / name).open("w", encoding="utf-8", newline="\n") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    if split == "sft":
        for register in ("stock", "soul"):
            report[f"adherence_{register}"] = _adherence(rows, register).to_json()
    text = json.dumps(report, indent=2, sort_keys=True)
    (output / "report.json").write_text(text + "\n", encoding="utf-8")
    return report


def _adherence(rows: Sequence[dict[str, Any]], register: str) -> Rate:
    """How many conversations of a register kept the SOUL by the rules: a draft's first score, a revision's last."""
    position = {"stock": 0, "soul": -1}[register]
    scores = [row["provenance"]["critiques"][position]["rule_score"] for row in rows if row["register"] == register]
    return Rate(sum(score == BEST_SCORE for score in scores), len(scores))


def _lines(path: Path) -> list[str]:
    with path.open(encoding="utf-8", newline="\n") as lines:
        return list(lines)


def _added(reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Counts of all shards together; figures that do not add up (rates) are left to the shards' own reports."""
    total: dict[str, Any] = {}
    for report in reports:
        for key, value in report.items():
            if isinstance(value, dict):
                total[key] = dict(sorted((Counter(total.get(key, {})) + Counter(value)).items()))
            elif isinstance(value, int):
                total[key] = total.get(key, 0) + value
    return total
