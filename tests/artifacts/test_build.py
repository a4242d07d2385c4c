"""Building: made once, found again by content, nothing visible after a failure."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from artifacts.build import Build, Stage, cache_key
from artifacts.canonical import CanonicalError, digest
from artifacts.records import ArtifactError
from artifacts.repository import Repository, blob_name, key_name, record_name
from artifacts.store import StoreError, open_store

PROJECT = Path(__file__).resolve().parents[2]


def test_the_second_build_finds_the_first(workshop):
    first = workshop.data()
    second = workshop.data()
    assert (first.cached, second.cached) == (False, True)
    assert first.record_digest == second.record_digest
    assert workshop.made == ["data"]


def test_the_record_says_how_it_was_made(workshop):
    tokens = workshop.data()
    built = workshop.train(tokens)
    record = workshop.repository.read_record(built.record_digest)
    assert (record.step, record.kind, record.name) == ("train", "model", "nano/train")
    assert record.inputs == {"tokens": tokens.record_digest}
    assert record.config == {"rate": 0.5}
    assert list(record.code.modules) == ["nanocode", "nanocode.optimizer", "steps", "steps.train"]
    assert [entry.path for entry in record.files] == ["weights.bin"]


def test_two_honest_makings_have_the_same_record_digest(workshop, tmp_path):
    first = workshop.train(workshop.data())
    workshop.repository = Repository(open_store("file:elsewhere", tmp_path))
    workshop.root = shutil.copytree(workshop.root, tmp_path / "moved", ignore=shutil.ignore_patterns("store", "work"))
    second = workshop.train(workshop.data())
    assert not second.cached
    assert (first.record_digest, first.key) == (second.record_digest, second.key)


def test_provenance_tells_when_where_by_whom_and_at_what_cost(workshop):
    times = iter([999_000.0, 1_000_000.0, 1_000_090.5, 1_000_091.0, 1_000_091.0])  # it waited before it started

    def produce(making: Build) -> dict[str, float]:
        (making.output / "a").write_text("a")
        making.environment["devices"] = "cpu:2"
        making.cost["tokens_in"] = 12
        return {"loss": 1.25}

    built = workshop.build(Stage("data", "t", "n", "steps.data", {}), produce, clock=lambda: next(times))
    (making,) = workshop.repository.provenances(built.record_digest)
    assert making.metrics == {"loss": 1.25}
    assert making.cost == {"wall_seconds": 90.5, "tokens_in": 12}
    assert making.environment["devices"] == "cpu:2"
    assert making.environment["python"] == ".".join(map(str, sys.version_info[:3]))
    assert making.git == {"commit": None, "dirty": None}
    assert making.run == {
        "flow": "TestFlow",
        "run_id": "7",
        "user": "tester",
        "started": "1970-01-12T13:46:40Z",
        "finished": "1970-01-12T13:48:10Z",
        "interruptions": 0,
        "generation": 1,
    }


def test_the_key_is_the_digest_of_its_payload_and_holds_no_path_host_or_time(workshop):
    tokens = workshop.data()
    stage = Stage("train", "model", "nano/train", "steps.train", {"rate": 0.5}, {"tokens": tokens.record_digest})
    key, payload = cache_key(workshop.repository, stage, workshop.root)
    assert key == digest(payload)
    assert set(payload) == {"schema", "step", "code", "config", "inputs"}
    content = workshop.repository.read_record(tokens.record_digest).content_digest
    assert payload["inputs"] == {"tokens": content}
    text = json.dumps(payload)
    for unwanted in (str(workshop.root), os.uname().nodename, "tester", "TestFlow", tokens.record_digest):
        assert unwanted not in text


def test_config_code_and_input_bytes_each_change_the_key(workshop):
    tokens = workshop.data()
    base = workshop.train(tokens).key
    assert workshop.train(tokens, rate=0.6).key != base
    other = workshop.data({"seed": 2}, text="other text")
    assert workshop.train(other).key != base
    workshop.write("nanocode/optimizer.py", "RATE = 0.2\n")
    assert workshop.train(tokens).key != base


def test_an_edit_elsewhere_or_to_a_comment_changes_nothing(workshop):
    workshop.train(workshop.data())
    workshop.write("nanocode/server.py", "PORT = 8080\n")
    workshop.write("nanocode/optimizer.py", "# the learning rate\nRATE = 0.1\n")
    assert workshop.train(workshop.data()).cached


def test_an_upstream_edit_that_changes_no_byte_stops_there(workshop):
    model = workshop.train(workshop.data())
    workshop.write("nanocode/text.py", "def clean(text):\n    return str(text).strip()\n")
    tokens = workshop.data()
    assert not tokens.cached
    again = workshop.train(tokens)
    assert again.cached
    assert again.record_digest == model.record_digest
    assert workshop.made == ["data", "train", "data"]


class Broken(Exception):
    pass


def failing(making: Build) -> None:
    (making.output / "half").write_text("half")
    raise Broken("as it was")


def test_an_exception_passes_through_and_leaves_nothing_visible(workshop):
    stage = Stage("data", "t", "n", "steps.data", {})
    with pytest.raises(Broken, match="as it was"):
        workshop.build(stage, failing)
    names = list(workshop.repository.store.list(""))
    assert {name.split("/")[0] for name in names} == {"ckpt"}
    assert list((workshop.root / "work").iterdir()) == []


def test_interruptions_are_counted_until_it_is_made(workshop):
    seen = []

    def produce(making: Build) -> None:
        seen.append(making.interruptions)
        if len(seen) < 3:
            raise Broken
        (making.output / "a").write_text("a")

    stage = Stage("data", "t", "n", "steps.data", {})
    for _ in range(2):
        with pytest.raises(Broken):
            workshop.build(stage, produce)
    built = workshop.build(stage, produce)
    assert seen == [0, 1, 2]
    assert workshop.repository.provenances(built.record_digest)[0].run["interruptions"] == 2
    assert list(workshop.repository.store.list("ckpt/")) == []


def test_a_checkpoint_of_a_failed_attempt_is_there_for_the_next(workshop):
    def produce(making: Build) -> None:
        latest = making.checkpoints.latest()
        if latest is None:
            (making.scratch / "state").write_text("step 5")
            making.checkpoints.save(5, making.scratch, {"position": 17})
            raise Broken
        making.checkpoints.restore(latest, making.output)

    stage = Stage("data", "t", "n", "steps.data", {})
    with pytest.raises(Broken):
        workshop.build(stage, produce)
    record = workshop.repository.read_record(workshop.build(stage, produce).record_digest)
    assert [(entry.path, entry.sha256) for entry in record.files] == [("state", hashlib.sha256(b"step 5").hexdigest())]


def test_a_kill_leaves_nothing_visible_and_its_folder_is_swept_by_the_next_build(workshop):
    script = f"""
        import os, signal
        from pathlib import Path
        from artifacts.build import *
        from artifacts.store import open_store
        root = Path({str(workshop.root)!r})
        def produce(making):
            (making.output / "half").write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)
        stage = Stage("data", "tokens", "nano/data", "steps.data", {{"seed": 1}})
        build(Repository(open_store("file:store", root)), stage, produce, root=root,
              run=RunInfo("f", "1", "u"), work_root=root / "work")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert len(list((workshop.root / "work").iterdir())) == 1
    built = workshop.data()
    assert not built.cached
    assert workshop.repository.provenances(built.record_digest)[0].run["interruptions"] == 1
    assert list((workshop.root / "work").iterdir()) == []


def test_a_folder_in_use_is_not_swept(workshop):
    def outer(making: Build) -> None:
        workshop.data()
        (making.output / "still").write_text("here")

    assert not workshop.build(Stage("outer", "t", "n", "steps.data", {}), outer).cached


def test_an_empty_output_is_refused(workshop):
    with pytest.raises(ArtifactError, match="data ended without writing any file"):
        workshop.build(Stage("data", "t", "n", "steps.data", {}), lambda making: None)
    assert list(workshop.repository.store.list("records/")) == list(workshop.repository.store.list("keys/")) == []


def test_a_link_in_the_output_is_refused(workshop):
    with pytest.raises(ArtifactError, match="link or special file"):
        workshop.build(
            Stage("data", "t", "n", "steps.data", {}), lambda making: (making.output / "a").symlink_to("/etc/hosts")
        )


def test_metrics_and_config_without_canonical_form_are_refused_by_name(workshop):
    def produce(making: Build) -> dict[str, float]:
        (making.output / "a").write_text("a")
        return {"loss": math.nan}

    with pytest.raises(CanonicalError, match=r"metrics of data\.loss is nan"):
        workshop.build(Stage("data", "t", "n", "steps.data", {}), produce)
    with pytest.raises(CanonicalError, match=r"config\.rate is inf"):
        workshop.build(Stage("data", "t", "n", "steps.data", {"rate": math.inf}), produce)
    assert list(workshop.repository.store.list("keys/")) == []


def test_an_input_that_does_not_exist_is_named(workshop):
    stage = Stage("train", "model", "n", "steps.train", {}, {"tokens": "0" * 64})
    with pytest.raises(ArtifactError, match=r"train: input 'tokens': record 0000.* does not exist"):
        workshop.build(stage, failing)


def blob_of(workshop, built, index=0) -> str:
    return blob_name(workshop.repository.read_record(built.record_digest).files[index].sha256)


@pytest.mark.parametrize("harm", ["delete", "truncate"])
def test_a_record_that_lost_a_blob_is_a_miss_that_says_so_and_is_made_again(workshop, harm):
    built = workshop.data()
    name = blob_of(workshop, built, 1)
    workshop.object(name).unlink() if harm == "delete" else workshop.overwrite(name, b"some")
    again = workshop.data()
    assert (again.cached, again.record_digest) == (False, built.record_digest)
    assert name in workshop.warnings[0]
    assert workshop.data().cached


def test_when_the_remake_differs_the_key_moves_to_the_whole_record(workshop):
    built = workshop.data()
    workshop.object(blob_of(workshop, built, 1)).unlink()
    again = workshop.data(text="other bytes, as another machine may make")
    assert again.record_digest != built.record_digest
    assert workshop.data().record_digest == again.record_digest


def test_the_first_of_two_commits_counts_for_both(workshop, tmp_path):
    """Leases keep two makers apart; a store where they cannot be relied on still gives one answer."""
    elsewhere = Repository(open_store("file:elsewhere", tmp_path))
    stage = Stage("data", "tokens", "nano/data", "steps.data", {"seed": 1})

    def produce(making: Build) -> None:
        (making.output / "slow").write_text("the slower one")
        mine, workshop.repository = workshop.repository, elsewhere
        faster = elsewhere.read_record(workshop.data(text="the faster one").record_digest)
        workshop.repository = mine
        (provenance,) = elsewhere.provenances(faster.digest)
        mine.put_folder(elsewhere.materialise(faster.digest, tmp_path / "copy"))
        mine.commit(*cache_key(mine, stage, workshop.root), faster, provenance)

    slower = workshop.build(stage, produce)
    assert workshop.made == ["data", "data"]
    record = workshop.repository.read_record(slower.record_digest)
    assert [entry.path for entry in record.files] == ["index.json", "train/0.txt"]


def test_an_altered_input_is_refused_before_the_stage_starts(workshop):
    tokens = workshop.data()
    workshop.overwrite(blob_of(workshop, tokens, 1), b"same size")
    expected = workshop.repository.read_record(tokens.record_digest).files[1].sha256
    with pytest.raises(ArtifactError, match=r"train/0\.txt was altered") as caught:
        workshop.train(tokens)
    assert expected in str(caught.value)
    assert hashlib.sha256(b"same size").hexdigest() in str(caught.value)
    assert workshop.made == ["data"]


def test_an_altered_record_raises_and_is_not_rebuilt_over(workshop):
    built = workshop.data()
    name = record_name(built.record_digest)
    workshop.overwrite(name, workshop.repository.store.read(name).replace(b"nano/data", b"nano/fake"))
    with pytest.raises(ArtifactError, match=f"{name} was altered"):
        workshop.data()
    assert workshop.made == ["data"]


@pytest.mark.parametrize("harm", ["payload", "elsewhere", "nowhere", "no json"])
def test_an_altered_key_raises_and_is_not_believed(workshop, harm):
    tokens = workshop.data()
    model = workshop.train(tokens)
    name = key_name(model.key)
    document = json.loads(workshop.repository.store.read(name))
    if harm == "payload":
        document["payload"]["config"]["rate"] = 9.0
    document["record"] = {"elsewhere": tokens.record_digest, "nowhere": "0" * 64}.get(harm, document["record"])
    workshop.overwrite(name, b"{" if harm == "no json" else json.dumps(document).encode())
    with pytest.raises(ArtifactError):
        workshop.train(tokens)
    assert workshop.made == ["data", "train"]


def test_a_disk_that_fills_up_while_storing_commits_nothing(workshop, monkeypatch):
    real = os.write

    def full(descriptor: int, data: memoryview) -> int:
        if b"some text" in bytes(data):
            raise OSError(28, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left on device"):
        workshop.data()
    monkeypatch.undo()
    assert list(workshop.repository.store.list("records/")) == list(workshop.repository.store.list("keys/")) == []
    assert not workshop.data().cached


def test_a_stage_may_change_its_inputs_without_touching_the_store(workshop):
    tokens = workshop.data()

    def vandal(making: Build) -> None:
        (making.inputs["tokens"] / "train" / "0.txt").write_text("changed")
        (making.output / "a").write_text("a")

    workshop.build(Stage("vandal", "t", "n", "steps.train", {}, {"tokens": tokens.record_digest}), vandal)
    copy = workshop.repository.materialise(tokens.record_digest, workshop.root / "copy")
    assert (copy / "train" / "0.txt").read_text() == "some text"
