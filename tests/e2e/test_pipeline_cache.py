"""What runs again, and what does not: the same run, one changed section, another seed, an altered blob."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytestmark = pytest.mark.slow

FIGURES = {"bpb_text", "bpb_code", "valid_call_rate", "task_success", "soul_sampled", "soul_greedy", "n_tasks"}


def test_a_second_run_makes_nothing_and_ends_with_the_same_release(finished):
    pipeline, first = finished
    assert Counter(first.stages("made"))["evaluate"] == 3
    assert first.stages("cached") == []
    before = pipeline.releases()
    again = pipeline.run()
    assert again.status == 0, again.output
    assert again.stages("made") == []
    assert Counter(again.stages("cached")) == Counter(first.stages("made"))
    assert pipeline.releases() == before
    assert "Traceback" not in first.output + again.output


def test_models_have_the_documented_shape(finished):
    pipeline, _ = finished
    release = pipeline.releases()[0]
    assert set(release) == {"name", "version", "digest", "created", "metrics"}
    assert (release["name"], release["version"], len(release["digest"])) == ("tiny", 1, 64)
    metrics = release["metrics"]
    for model in ("base", "sft", "dpo"):
        assert set(metrics[model]) >= FIGURES
        assert metrics[model]["n_tasks"] == 4
        assert 0 < metrics[model]["bpb_text"] < 20
        assert 0 <= metrics[model]["task_success"] <= 1
    assert 0 <= metrics["preference_accuracy"] <= 1
    assert {name: pair["n"] for name, pair in metrics["retention"].items()} == {"greedy": 4, "sampled": 4}
    assert metrics["wall_seconds"] > 1
    assert metrics["peak_rss_bytes"] > 100_000_000


def test_the_release_verifies_down_to_its_sources(finished):
    pipeline, _ = finished
    verdict = json.loads(pipeline.nanocode("lineage", "verify", "tiny@1", "--json").output)
    assert (verdict["ok"], verdict["faults"]) == (True, [])
    shown = pipeline.nanocode("lineage", "show", "tiny@1").output
    stages = ("release", "dpo", "sft", "pretrain", "plan_rows", "tokenise", "gather_rollouts", "fit_tokenizer")
    for stage in (*stages, "shard_data", "import_file"):
        assert stage in shown


def test_the_next_commands_are_those_of_this_store(finished):
    pipeline, first = finished
    commands = [line.partition("nanocode ")[2] for line in first.output.splitlines() if ".venv/bin/nanocode" in line]
    assert [command.split()[0] for command in commands] == ["agent", "lineage", "lineage"]
    for command in commands[1:]:
        words = command.partition(" #")[0].split()
        assert words[-2:] == ["--store", f"file:{pipeline.store}"]
        assert pipeline.nanocode(*words).status == 0
    assert "card view evaluate " in first.output
    assert pipeline.finish([*pipeline.flow()[:2], "card", "list", "evaluate"]).status == 0


def test_a_changed_dpo_section_reruns_dpo_and_what_follows_alone(finished):
    pipeline, first = finished
    changed = pipeline.run("dpo.lr=2e-5")
    assert changed.status == 0, changed.output
    assert changed.stages("made") == ["dpo", "evaluate", "release"]
    assert len(changed.stages("cached")) == len(first.stages("made")) - 3
    assert pipeline.nanocode("lineage", "verify", "tiny").status == 0
    digests = [release["digest"] for release in pipeline.releases()]
    assert len(set(digests)) == len(digests) >= 2


def test_another_seed_gives_other_weights_from_the_same_data(copied, finished):
    pipeline = copied()
    other = pipeline.run("seed=2")
    assert other.status == 0, other.output
    assert {"shard_data", "fit_tokenizer"} <= set(other.stages("cached"))
    assert {"pretrain", "generate_rollouts", "sft", "dpo"} <= set(other.stages("made"))
    assert pipeline.weights(pipeline.digest()) != pipeline.weights(finished[0].releases()[0]["digest"])


def test_an_altered_blob_is_named_by_verify_and_refused_until_it_is_restored(copied, finished):
    """The failed run is then gone on with by Metaflow's own `resume`."""
    pipeline = copied("reference", "dpo", "evaluate", "release")
    pairs = pipeline.record("gather_rollouts", "tiny/data-preference")
    (entry,) = [file for file in pairs["files"] if file["path"] == "pairs.jsonl"]
    blob = pipeline.store / "objects" / "sha256" / entry["sha256"][:2] / entry["sha256"]
    original = blob.read_bytes()
    blob.chmod(0o644)
    blob.write_bytes(original[:-2] + b" \n")

    refused = pipeline.run()
    assert refused.status != 0
    assert "Traceback" not in refused.output
    (line,) = [line for line in refused.output.splitlines() if "error: " in line]
    assert "pairs.jsonl was altered" in line
    assert "dpo" not in refused.stages("made")
    assert pipeline.releases() == []
    faults = pipeline.nanocode("lineage", "verify", pipeline.record_digest("gather_rollouts", "tiny/data-preference"))
    assert faults.status == 1
    assert str(blob.relative_to(pipeline.store)) in faults.output

    blob.write_bytes(original)
    resumed = pipeline.finish([*pipeline.flow()[:2], "resume"])
    assert resumed.status == 0, resumed.output
    # The base model's evaluation runs beside the step that refuses: it is made by the one run or by the other.
    made = Counter(refused.stages("made") + resumed.stages("made"))
    assert made == {"reference": 1, "dpo": 1, "evaluate": 3, "release": 1}
    assert pipeline.digest() == finished[0].releases()[0]["digest"]
