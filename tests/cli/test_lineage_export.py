"""lineage export: every format on a made-up pipeline; the card says what the records say, and nothing else."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from artifacts.build import Build, RunInfo, Stage, build
from artifacts.releases import publish
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import cli


def rate(hits: int, n: int) -> dict:
    return {"rate": hits / n, "hits": hits, "n": n, "low": 0.9 * hits / n, "high": min(1.0, 1.1 * hits / n)}


def evaluation(success: int, bits: float) -> dict:
    decoded = {"success": rate(success, 10), "soul": rate(5, 10), "valid_calls": rate(9, 10)}
    by_family = {"insert": rate(1, 10), "read": rate(9, 10)}
    greedy = decoded | {"by_family": by_family, "principles_broken": {"lowercase": 2}}
    return {"greedy": greedy, "sampled": decoded, "bpb_text": bits}


@pytest.fixture
def store(tmp_path: Path) -> SimpleNamespace:
    """The shape of the real pipeline, with made-up bytes and figures."""
    repository = Repository(open_store(f"file:{tmp_path}/store"))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "demo.py").write_text("VALUE = 1\n")

    def make(step: str, kind: str, name: str, config: dict, metrics: dict, cost: dict | None = None, **inputs: str):
        def produce(making: Build) -> dict:
            making.cost.update(cost or {})
            (making.output / "file.bin").write_text(name)
            return metrics

        stage = Stage(step, kind, name, "steps.demo", {"name": name} | config, inputs)
        arguments = {"root": tmp_path, "run": RunInfo("F", "1", "u"), "work_root": tmp_path / "work"}
        return build(repository, stage, produce, **arguments).record_digest

    kept = {"documents": 12, "bytes": 3456}
    shards = make(
        "shard_data", "shards", "nano/shards-docs", {"source": {"kind": "files", "filters": {"email": "redact"}}},
        {"source": "docs", "register": "text", "kept": kept, "licences": {"PSF-2.0": 11, "My | <own>": 1},
         "skipped": {"empty": 3}, "filters": {"email": {"documents": 1, "matches": 4}}},
    )  # fmt: skip
    endpoint = {"model": "nanocode-rules"}
    teachers = {"generator": endpoint, "critic": endpoint, "reviser": endpoint}
    pairs = make("gather_rollouts", "pairs", "nano/data-preference", {"constitution": teachers},
                 {"tasks": 8, "kept": 7, "dropped": {"loop": 1}, "gate": {"kept": 7}, "pairs": 7})  # fmt: skip
    sets = make("convert_instructions", "instructions", "nano/instructions-oss", {},
                {"source": "oss", "kind": "self_oss_instruct", "rows": 9, "kept": 5, "licences": {"ODC-By-1.0": 5},
                 "sources": {"org/oss@0123": 5}, "dropped": {"no code block": 4}})  # fmt: skip
    restyled = make("restyle_instructions", "restyled", "nano/restyled-oss-preference", {},
                    {"tasks": 5, "kept": 4, "pairs": 3, "dropped": {"oss: no version was accepted": 1},
                     "licences": {"ODC-By-1.0": 3}, "sources": {"org/oss@0123": 3}}, instructions=sets)  # fmt: skip
    shape = {"depth": 4, "width": 128, "heads": 2, "context_tokens": 256, "recipe": "nanochat"}
    trained = {"steps": 60, "tokens": 1234, "curve": [{"loss": 4.5}], "returns": []}
    held = {"device_seconds": 3600.0, "usd": 2.0, "tokens_trained": 1234}
    base = make(
        "pretrain", "model", "nano/base", {"model": shape, "weights": {"docs": 1.0}}, trained, held, data=shards
    )
    dpo = make("dpo", "model", "nano/dpo", {"dpo": {"batch_pairs": 16}}, trained, model=base, pairs=pairs,
               instructions=sets, restyled=restyled)  # fmt: skip
    config = {"evaluation": {"tasks": 10}}
    first = make("evaluate", "evaluation", "nano/evaluation-base", config, evaluation(0, 2.0), model=base)
    last = make("evaluate", "evaluation", "nano/evaluation-dpo", config, evaluation(7, 3.0), model=dpo)
    top = make("release", "release", "nano", {"seed": 1, "left_out": None}, {}, model=dpo, base=first, dpo=last)
    publish(repository, "nano", top, {"success": 0.7}, "2026-01-02T03:04:05Z")
    return SimpleNamespace(url=f"file:{tmp_path}/store", record=top, base=base, tmp=tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], store):
    """Call `nanocode --store STORE lineage export ARGUMENTS`; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nanocode", "--store", store.url, "lineage", "export", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def card(run) -> str:
    code, out, _ = run("nano", "--format", "card")
    assert code == 0
    return out


def test_the_card_shows_figures_with_interval_and_n(run):
    text = card(run)
    assert "| tasks solved | 0.0% (0.0% to 0.0%, n = 10) | 70.0% (63.0% to 77.0%, n = 10) |" in text
    assert "| insert | 10.0% (9.0% to 11.0%, n = 10) |" in text
    assert "| bits per byte, text | 2.000 | 3.000 |" in text


def test_the_card_shows_the_data_with_licences_and_what_was_dropped_and_no_name_breaks_the_table(run):
    text = card(run)
    assert "| docs | files | text | 12 | 3,456 | My \\| &lt;own> 1, PSF-2.0 11 | 1.0 | empty 3 |" in text
    assert "Personal data and secrets found in docs: email 4 (redact)." in text
    assert "| nano/data-preference | 8 | 7 | loop 1 | kept 7 | 7 |" in text


def test_an_instruction_set_is_told_apart_from_what_the_rules_taught(run):
    text = card(run)
    kept = "org/oss@0123 5 | 9 | 5 | ODC-By-1.0 5 | no code block 4 |"
    assert f"| nano/instructions-oss | self_oss_instruct | {kept}" in text
    kept = "org/oss@0123 3 | 5 | 3 | ODC-By-1.0 3 | oss: no version was accepted 1 |"
    assert f"| nano/restyled-oss-preference | restyled | {kept}" in text
    assert "What it was taught after pretraining, but for nano/instructions-oss, was written by rules" in text
    pytest.importorskip("cyclonedx")
    bom = json.loads(run("nano", "--format", "cyclonedx")[1])
    for name in ("nano/restyled-oss-preference", "nano/instructions-oss"):
        (part,) = [each for each in bom["components"] if each["name"] == name]
        assert part["licenses"] == [{"license": {"id": "ODC-By-1.0"}}]
        assert {"name": "nanocode:sources", "value": "org/oss@0123"} in part["properties"]
    facts = {each["name"]: each["value"] for each in part["properties"]}
    assert facts["nanocode:rows"] == "5" and "nanocode:taught_by" not in facts


def test_the_card_labels_what_rules_taught(run):
    assert "**Taught by rules.** Generator, critic, reviser: not a language model" in card(run)


def test_the_card_names_the_limits_that_its_own_figures_show(run):
    limits = card(run).partition("## Known limits")[2].partition("##")[0]
    assert "insert (10% of 10)" in limits
    assert "read" not in limits.partition("Task families")[2].partition("\n")[0]
    assert "lowercase (2)" in limits
    assert "bits per byte 2.00 for the base model, 3.00 for this one" in limits


def test_the_card_shows_cost_and_what_has_no_price_and_the_configuration_without_nulls(run):
    text = card(run)
    assert "| **total** |  |" in text
    assert "3,600" in text
    assert '"seed": 1' in text
    assert "left_out" not in text
    assert "Signed: no." in text


def test_a_record_that_was_never_released_has_a_card_without_results(run, store):
    code, out, _ = run(store.base[:12], "--format", "card")
    assert code == 0
    assert out.startswith("# nano/base\n")
    assert "## Results" not in out
    assert f"nanocode lineage verify {store.base[:16]}" in out


@pytest.mark.parametrize("form", ["openlineage", "cyclonedx", "in-toto", "mermaid", "card"])
def test_every_format_is_the_same_every_time_to_a_file_and_as_json(run, store, form):
    if form in ("openlineage", "cyclonedx"):
        pytest.importorskip(form)
    code, text, _ = run("nano", "--format", form)
    assert code == 0
    target = store.tmp / "export"
    code, out, err = run("nano@1", "--format", form, "--output", str(target))
    assert (code, out) == (0, "")
    assert str(target) in err
    assert target.read_text() == text
    code, out, _ = run("nano", "--format", form, "--json")
    document = json.loads(out)
    assert (code, document["record"], document["format"]) == (0, store.record, form)
    content = document["content"]
    assert content == (json.loads(text) if form in ("cyclonedx", "in-toto") else text)


def test_the_bill_of_materials_holds_licences_rows_and_the_teacher(run):
    pytest.importorskip("cyclonedx")
    bom = json.loads(run("nano", "--format", "cyclonedx")[1])
    parts = {each["name"]: each for each in bom["components"]}
    licences = [each["license"] for each in parts["nano/shards-docs"]["licenses"]]
    assert licences == [{"name": "My | <own>"}, {"id": "PSF-2.0"}]
    facts = {each["name"]: each["value"] for each in parts["nano/data-preference"]["properties"]}
    assert (facts["nanocode:rows"], facts["nanocode:taught_by"]) == ("7", "rules, not a language model")
    figures = bom["metadata"]["component"]["modelCard"]["quantitativeAnalysis"]["performanceMetrics"]
    assert {"type": "bpb_text", "value": "3.0", "slice": "dpo"} in figures


def test_the_signature_of_an_unsigned_model_is_refused_with_the_cure(run):
    code, out, err = run("nano", "--format", "signature")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "nanocode models sign" in err


def test_a_format_that_is_none_is_wrong_use(run):
    code, _, err = run("nano", "--format", "pdf")
    assert code == 2
    assert "openlineage" in err
