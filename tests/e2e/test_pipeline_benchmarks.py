"""Downloaded benchmarks in a whole pipeline: every model is asked, nothing else is made again, all of it verifies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from benchmark_files import write_bundle, write_problems

pytestmark = pytest.mark.slow


@pytest.fixture
def overrides(tmp_path: Path) -> list[str]:
    """A bundle of one task and a file of one problem."""
    rows = [
        {"query": f"import {name}", "choices": ["os", "sys"], "gold": len(name) % 2}
        for name in ["a", "bb", "c", "dd", "e", "ff"]
    ]
    bundle = write_bundle(tmp_path / "bundle", {"quiz": rows}, shots=2)
    problems = write_problems(tmp_path / "problems.jsonl")
    return [f"evaluation.core_bundle={bundle}", f"evaluation.human_eval={problems}"]


def test_benchmarks_ask_every_model_and_nothing_else_is_made_again(copied, overrides):
    pipeline = copied()
    asked = pipeline.run(*overrides)
    assert asked.status == 0, asked.output
    assert Counter(asked.stages("made")) == {"import_benchmark": 2, "evaluate": 3, "release": 1}
    metrics = pipeline.releases()[-1]["metrics"]
    for model, way in (("base", "completion"), ("sft", "agent"), ("dpo", "agent")):
        figures = metrics["details"][model]
        assert figures["core"]["tasks"]["quiz"]["n"] == 6
        assert metrics[model]["core"] == figures["core"]["core"] == 2 * figures["core"]["tasks"]["quiz"]["rate"] - 1
        assert (figures["human_eval"]["way"], figures["human_eval"]["problems"]) == (way, 1)
    assert any(" CORE " in line for line in asked.output.splitlines())
    again = pipeline.run(*overrides)
    assert again.stages("made") == []
    assert json.loads(pipeline.nanocode("lineage", "verify", "tiny", "--json").output)["ok"]
    measured = pipeline.nanocode("eval", "tiny", "--suite", "core", "--json")
    document = json.loads(measured.output.splitlines()[-1])
    assert [(each["figure"], each["verdict"]) for each in document["agreement"]["tiny@1"]] == [("core.quiz", "same")]


def test_a_benchmark_that_cannot_be_used_ends_the_run_before_anything_is_made(make_pipeline, tmp_path):
    pipeline = make_pipeline()
    ended = pipeline.run(f"evaluation.core_bundle={tmp_path}")
    assert ended.status != 0 and "Traceback" not in ended.output
    assert f"there is no {tmp_path / 'core.yaml'}: name the folder" in ended.output
    assert ended.stages("made") == []
