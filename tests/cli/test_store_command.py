"""`nanocode store`: what is listed, counted, collected, copied and pinned, and what is refused in one line."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from artifacts.build import Build, RunInfo, Stage, build
from artifacts.lineage import verify
from artifacts.releases import publish
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import cli
from nanocode.cli import store as command

DATE = "2026-01-02T03:04:05Z"
LONG_AGO = 1_000_000_000.0


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A store with data, two models made of it long ago, and a release of the first."""
    monkeypatch.setattr(command, "project_root", lambda: tmp_path)
    monkeypatch.delenv("NANOCODE_CACHE", raising=False)
    repository = Repository(open_store(f"file:{tmp_path}/store"))
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "demo.py").write_text("VALUE = 1\n")

    def make(step: str, name: str, text: str, **inputs: str) -> str:
        def produce(making: Build) -> None:
            (making.output / "file.txt").write_text(text)

        stage = Stage(step, step, f"nano/{name}", "steps.demo", {"text": text}, inputs)
        arguments = {"root": tmp_path, "run": RunInfo("F", "1", "u"), "work_root": tmp_path / "work"}
        return build(repository, stage, produce, clock=lambda: LONG_AGO, **arguments).record_digest

    data = make("data", "data", "[raw] text")
    kept, spare = make("train", "base", "weights", tokens=data), make("train", "other", "more weights", tokens=data)
    publish(repository, "nano", kept, {"bpb": 2.0}, DATE)
    for path in (tmp_path / "store").rglob("*.json"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    for path in (tmp_path / "store" / "objects").rglob("*/*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    url = f"file:{tmp_path}/store"
    return SimpleNamespace(url=url, data=data, kept=kept, spare=spare, repo=repository, folder=tmp_path)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], store: SimpleNamespace):
    """Call `nanocode --store URL store ARGUMENTS`; returns exit code, stdout, stderr."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nanocode", "--store", store.url, "store", *arguments])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capfd.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def records(store: SimpleNamespace) -> set[str]:
    return {name.removeprefix("records/").removesuffix(".json") for name in store.repo.store.list("records/")}


def test_ls_says_who_needs_what(store, run):
    code, out, err = run("ls", "--json")
    assert (code, err) == (0, "")
    rows = {row["record"]: row for row in json.loads(out)}
    assert {digest: row["needed_by"] for digest, row in rows.items()} == {
        store.data: ["nano@1"],
        store.kept: ["nano@1"],
        store.spare: [],
    }
    assert rows[store.kept] | {"made": ""} == {
        "record": store.kept,
        "step": "train",
        "kind": "train",
        "name": "nano/base",
        "made": "",
        "bytes": len("weights"),
        "needed_by": ["nano@1"],
    }


def test_ls_filters_by_stage_and_shows_a_table(store, run):
    code, out, _ = run("ls", "--step", "data")
    assert code == 0
    assert store.data[:12] in out and "nano/data" in out and "nano@1" in out
    assert store.kept[:12] not in out
    assert "nobody" in run("ls", "--kind", "train")[1]


def test_du_adds_up(store, run):
    code, out, _ = run("du", "--json")
    found = json.loads(out)
    texts = ("[raw] text", "weights", "more weights")
    assert code == 0
    assert found["blobs"] == found["total"] == sum(map(len, texts))
    assert [(usage["step"], usage["records"], usage["shared"]) for usage in found["usages"]] == [
        ("data", 1, 0),
        ("train", 2, 0),
    ]
    assert "in all 29 B" in run("du")[1]


def test_gc_says_what_would_go_and_deletes_with_yes_alone(store, run):
    code, out, _ = run("gc")
    assert code == 0
    assert "would be deleted" in out and "--yes" in out
    assert records(store) == {store.data, store.kept, store.spare}
    code, out, _ = run("gc", "--yes", "--json")
    assert code == 0
    assert json.loads(out)["records"] == [f"records/{store.spare}.json"]
    assert records(store) == {store.data, store.kept}
    assert verify(store.repo, store.kept) == []
    assert "nothing to collect" in run("gc", "--yes")[1]


def test_a_pin_keeps_what_gc_would_delete(store, run):
    assert "pinned" in run("pin", store.spare[:8])[1]
    assert "was pinned before" in run("pin", store.spare[:8])[1]
    assert store.spare[:12] in run("pin", "--list")[1]
    assert "nothing to collect" in run("gc", "--yes")[1]
    assert json.loads(run("pin", store.spare[:8], "--remove", "--json")[1])["changed"] is True
    assert "deleted" in run("gc", "--yes")[1]
    assert records(store) == {store.data, store.kept}


def test_cp_carries_a_release_with_its_lineage(store, run, tmp_path):
    there = f"file:{tmp_path}/there"
    code, out, _ = run("cp", "nano", "--to", there, "--json")
    assert code == 0
    told = json.loads(out)
    assert (told["model"], told["records"], told["sent"]) == ("nano@1", 2, 2)
    target = Repository(open_store(there))
    assert verify(target, store.kept) == []
    assert "0 of 2 blobs sent" in run("cp", "nano@1", "--to", there)[1]


def test_cp_carries_a_record_that_was_not_released(store, run, tmp_path):
    there = f"file:{tmp_path}/there"
    assert json.loads(run("cp", store.spare[:10], "--to", there, "--json")[1])["model"] == store.spare[:12]
    assert verify(Repository(open_store(there)), store.spare) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gc", "--grace-hours", "0.5"), "grace of more than 1 h"),
        (("pin",), "name what to pin"),
        (("pin", "nanu"), "did you mean 'nano'"),
        (("cp", "nano", "--to", "ftp://x"), "supported kinds"),
    ],
)
def test_wrong_use_is_one_line_and_exit_2(store, run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_copying_onto_itself_is_refused(store, run):
    code, _, err = run("cp", "nano", "--to", store.url)
    assert code == 2
    assert "name another one" in err


def test_gc_stops_at_a_needed_record_that_was_altered(store, run):
    path = store.folder / "store" / "records" / f"{store.data}.json"
    path.chmod(0o644)
    path.write_text("{}")
    code, _, err = run("gc", "--yes")
    assert (code, err.count("\n")) == (1, 1)
    assert "was altered" in err
    assert records(store) == {store.data, store.kept, store.spare}


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (999, "999 B"), (1_500, "1.5 kB"), (2_340_000_000, "2.3 GB"), (5e15, "5000.0 TB")]
)
def test_sizes_are_shown_in_their_unit(count, shown):
    assert command.size(count) == shown
