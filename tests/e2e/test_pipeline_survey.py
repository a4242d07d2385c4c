"""The survey of a run against the run itself, and a run that keeps what edited code would make again."""

from __future__ import annotations

import json
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

CONFIG = Path(__file__).with_name("tiny.toml")
ROOT = Path(__file__).parents[2]


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


def test_a_run_keeps_what_it_is_told_to_and_the_release_says_so(copied, tmp_path):
    pipeline = copied()
    for package in ("artifacts", "configs", "flows", "nanocode", "steps"):
        shutil.copytree(ROOT / package, tmp_path / "edited" / package, ignore=shutil.ignore_patterns("__pycache__"))
    module = tmp_path / "edited" / "nanocode" / "training" / "preference.py"
    module.write_text(module.read_text() + "\nEDITED = True\n")
    flow = [sys.executable, tmp_path / "edited" / "flows" / "full_pipeline.py", "--config", "config", CONFIG, "run"]
    kept = ["--override", "dpo.lr=4e-5", "--reuse", "reference, evaluation-base, evaluation-sft"]

    refused = pipeline.finish([*flow, "--reuse", "referense"])
    assert refused.status != 0
    assert "did you mean 'reference'?" in refused.output
    done = pipeline.finish([*flow, *kept])
    assert done.status == 0, done.output
    assert done.stages("made") == ["dpo", "evaluate", "release"]
    assert Counter(done.stages("reused")) == {"evaluate": 2, "reference": 1}

    (release,) = pipeline.releases()
    told = {each["name"]: each["modules"] for each in release["metrics"]["reused"]}
    names = ("tiny/evaluation-base", "tiny/evaluation-sft", "tiny/reference")
    assert told == {name: ["nanocode.training.preference"] for name in names}
    (making,) = (pipeline.store / "provenance" / release["digest"]).glob("*.json")
    assert json.loads(making.read_bytes())["run"]["reused"] == release["metrics"]["reused"]
    assert pipeline.nanocode("lineage", "verify", "tiny").status == 0
