"""The survey of a run against the run itself: the same stages, and the state that each then has."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).with_name("tiny.toml")


def planned(pipeline, *arguments: object) -> list[dict[str, Any]]:
    """The survey that `nanocode plan --json` prints."""
    done = pipeline.nanocode("plan", CONFIG, "--devices", 1, "--json", *arguments)
    assert done.status == 0, done.output
    return json.loads(done.output)["survey"]["stages"]


def test_the_survey_names_exactly_what_a_run_makes(make_pipeline, finished):
    _, first = finished
    before = planned(make_pipeline("empty"))
    assert Counter(stage["step"] for stage in before) == Counter(first.stages("made"))
    assert {stage["state"] for stage in before} == {"runs", "follows"}


def test_after_a_run_everything_is_cached_under_the_names_of_its_records(finished):
    pipeline, _ = finished
    after = planned(pipeline)
    assert {stage["state"] for stage in after} == {"cached"}
    records = {path.stem: json.loads(path.read_bytes()) for path in (pipeline.store / "records").glob("*.json")}
    assert {stage["record"]: stage["name"] for stage in after}.items() <= {
        digest: record["name"] for digest, record in records.items()
    }.items()


def test_a_change_is_announced_before_it_is_made(finished):
    pipeline, first = finished
    stages = planned(pipeline, "--set", "dpo.lr=3e-5")
    assert [stage["step"] for stage in stages if stage["state"] != "cached"] == ["dpo", "evaluate", "release"]
    changed = pipeline.run("dpo.lr=3e-5")
    assert changed.status == 0, changed.output
    assert changed.stages("made") == ["dpo", "evaluate", "release"]
    assert len(changed.stages("cached")) == len(first.stages("made")) - 3
