"""lineage diff, cost, verify with keys, and models sign: shapes, exit codes, and what a person reads."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from artifacts.build import Build, RunInfo, Stage, build
from artifacts.canonical import canonical_json
from artifacts.records import Fingerprint, Record
from artifacts.releases import publish
from artifacts.repository import Repository, record_name
from artifacts.store import open_store
from nanocode import cli
from tests.keys import write_keys

DATE = "2026-01-02T03:04:05Z"


@pytest.fixture
def store(tmp_path: Path) -> SimpleNamespace:
    """Two versions of a model, which differ in one config key of the training stage."""
    repository = Repository(open_store(f"file:{tmp_path}/store"))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "demo.py").write_text("VALUE = 1\n")

    def make(step: str, config: dict, text: str, cost: dict, **inputs: str) -> str:
        def produce(making: Build) -> None:
            making.cost.update(cost)
            (making.output / "file.txt").write_text(text)

        stage = Stage(step, step, f"nano/{step}", "steps.demo", config, inputs)
        arguments = {"root": tmp_path, "run": RunInfo("F", "1", "u"), "work_root": tmp_path / "work"}
        return build(repository, stage, produce, **arguments).record_digest

    data = make("data", {}, "[raw] text", {"requests": 4, "tokens_in": 1_000_000})
    for rate in (0.1, 0.2):
        cost = {"device_seconds": 7_200.0, "usd": 5.0, "interrupted_seconds": 30.0}
        model = make("train", {"rate": rate}, f"weights {rate}", cost, tokens=data)
        publish(repository, "nano", make("release", {}, f"all {rate}", {}, model=model), {"rate": rate}, DATE)
    return SimpleNamespace(
        url=f"file:{tmp_path}/store", root=tmp_path / "store", data=data, model=model, repo=repository, tmp=tmp_path
    )


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], store):
    """Call `nanocode --store STORE ARGUMENTS`; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nanocode", "--store", store.url, *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


@pytest.fixture
def keys(store) -> SimpleNamespace:
    pytest.importorskip("cryptography")
    from cryptography.hazmat.primitives.asymmetric import ec

    private, public = write_keys(store.tmp, "own", ec.generate_private_key(ec.SECP256R1()))
    return SimpleNamespace(private=str(private), public=str(public))


def test_diff_names_the_cause_and_what_follows_from_it(run):
    code, out, err = run("lineage", "diff", "nano@1", "nano@2")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert "2 record(s) differ, 1 of them by themselves" in lines[0]
    assert next(line for line in lines if line.startswith("top: release")).endswith("follows from model")
    assert "  config      rate: 0.1 -> 0.2" in lines
    assert "tokens" not in out


def test_diff_as_json_and_its_exit_code_when_asked_for(run, store):
    code, out, _ = run("lineage", "diff", "nano@1", store.model, "--json")
    assert code == 0
    code, out, _ = run("lineage", "diff", "nano@1", "nano@2", "--exit-code", "--json")
    document = json.loads(out)
    assert code == 1
    assert [(each["path"], each["follows"]) for each in document["differences"]] == [("", True), ("model", False)]
    assert document["differences"][1]["config"] == [{"path": "rate", "old": 0.1, "new": 0.2}]


def test_diff_of_the_same_record_says_so_and_exits_0(run):
    code, out, _ = run("lineage", "diff", "nano@2", "nano", "--exit-code")
    assert code == 0
    assert out.endswith("are the same record\n")


def test_cost_adds_up_and_names_what_has_no_price(run):
    code, out, _ = run("lineage", "cost", "nano")
    assert code == 0
    assert "no price is known for nano/data" in out
    assert "7,200.0" in out
    assert "30.0" in out
    code, out, _ = run("lineage", "cost", "nano", "--json")
    document = json.loads(out)
    assert (document["total"]["usd"], document["total"]["tokens_in"]) == (5.0, 1_000_000)
    assert document["unpriced"] == ["nano/data"]
    assert [stage["step"] for stage in document["stages"]] == ["data", "train", "release"]


def test_a_signed_release_verifies_with_its_key_and_says_what_was_not_checked_without(run, keys):
    code, out, _ = run("models", "sign", "nano@2", "--key", keys.private, "--json")
    assert code == 0
    signed = json.loads(out)
    assert (signed["model"], signed["signature"]) == ("nano@2", "releases/nano/2.sig.json")
    code, out, _ = run("lineage", "verify", "nano", "--public-key", keys.public)
    assert (code, "all true" in out) == (0, True)
    code, out, _ = run("lineage", "verify", "nano", "--json")
    (note,) = json.loads(out)["notes"]
    assert code == 0
    assert signed["key"][:16] in note


def test_the_signature_is_exported_as_it_stands_in_the_store(run, store, keys):
    run("models", "sign", "nano@2", "--key", keys.private)
    code, out, _ = run("lineage", "export", "nano", "--format", "signature")
    assert (code, out.encode()) == (0, store.repo.store.read("releases/nano/2.sig.json"))


def test_a_long_config_is_cut_short_in_the_tree_and_whole_as_json(run, store):
    config = {f"key{index:03}": index for index in range(200)}
    record = Record("k", "s", "n", (), {}, config, Fingerprint("0" * 64, {}))
    store.repo.store.put_bytes(record_name(record.digest), record.to_json())
    _, out, _ = run("lineage", "show", record.digest)
    assert "key000=0" in out
    assert "key199" not in out
    assert "--json" in out
    assert json.loads(run("lineage", "show", record.digest, "--json")[1])["config"] == config


def test_an_unsigned_release_verifies_with_a_note_and_not_with_a_key(run, keys):
    code, out, _ = run("lineage", "verify", "nano@1")
    assert code == 0
    assert "note: nano@1 is not signed" in out
    code, out, _ = run("lineage", "verify", "nano@1", "--public-key", keys.public)
    assert code == 1
    assert "missing-signature" in out


def test_a_release_edited_after_signing_fails_with_every_object_named(run, store, keys):
    run("models", "sign", "nano", "--key", keys.private)
    path = store.root / "releases" / "nano" / "2.json"
    path.chmod(0o644)
    path.write_bytes(canonical_json(json.loads(path.read_bytes()) | {"metrics": {"rate": 99}}))
    code, out, _ = run("lineage", "verify", "nano", "--public-key", keys.public, "--json")
    assert code == 1
    assert [(fault["kind"], fault["object"]) for fault in json.loads(out)["faults"]] == [
        ("altered-release", "releases/nano/2.json"),
        ("mismatched-signature", "releases/nano/2.sig.json"),
    ]


def test_signing_with_no_key_file_is_one_line(run):
    code, out, err = run("models", "sign", "nano", "--key", "nowhere.pem")
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "nowhere.pem" in err


def test_show_says_when_parts_were_made_in_other_environments(run, store):
    made = store.repo.provenances(store.data)[-1]
    changed = made.environment | {"jax": "0.0.1"}
    store.repo.add_provenance(type(made)(store.data, made.git, changed, run=made.run))
    code, out, _ = run("lineage", "show", "nano")
    assert code == 0
    assert "note: jax differs between the parts" in out
    assert "0.0.1 for data" in out
    code, out, _ = run("lineage", "show", "nano", "--json")
    assert len(json.loads(out)["environments"]) == 2
