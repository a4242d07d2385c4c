"""What stands on stores, on S3: builds that are cached, checkpoints, the doctor's look."""

from __future__ import annotations

from pathlib import Path

import pytest

from artifacts.checkpoints import CheckpointStore
from artifacts.lineage import verify
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode.cli import doctor
from nanocode.cli.context import find_store
from tests.artifacts.conftest import SOURCES, Workshop
from tests.servers import Server


@pytest.fixture
def workshop(tmp_path: Path, s3: Server, place: str) -> Workshop:
    shop = Workshop(tmp_path, Repository(open_store(f"s3://{s3.bucket}/{place}")))
    shop.repository.warn = shop.warnings.append
    for name, text in SOURCES.items():
        shop.write(name, text)
    return shop


def test_a_stage_is_made_once_and_found_by_another_process(workshop: Workshop) -> None:
    first = workshop.train(workshop.data())
    assert (first.cached, workshop.made) == (False, ["data", "train"])
    workshop.repository = Repository(open_store(workshop.repository.store.url))
    again = workshop.train(workshop.data())
    assert (again.cached, again.record_digest) == (True, first.record_digest)
    assert workshop.made == ["data", "train"]
    assert verify(workshop.repository, first.record_digest) == []


def test_a_lost_blob_is_a_miss_and_made_again(workshop: Workshop) -> None:
    first = workshop.data()
    store = workshop.repository.store
    lost = next(iter(store.list("objects/")))
    store.delete(lost)
    second = workshop.data()
    assert (second.cached, second.record_digest) == (False, first.record_digest)
    assert store.size(lost) is not None
    assert "is missing" in workshop.warnings[0]


def test_checkpoints_are_saved_found_and_pruned(workshop: Workshop, tmp_path: Path) -> None:
    checkpoints = CheckpointStore(workshop.repository.store, "c" * 64)
    for step in (9, 10, 100):
        (tmp_path / "state").mkdir(exist_ok=True)
        (tmp_path / "state" / "params").write_text(f"p{step}")
        (tmp_path / "state" / "shared").write_text("same")
        checkpoints.save(step, tmp_path / "state", {"position": step})
    assert checkpoints.prune(2) == [9]
    latest = checkpoints.latest()
    assert latest is not None and (latest.step, latest.details) == (100, {"position": 100})
    restored = checkpoints.restore(latest, tmp_path / "restored")
    assert {path.name: path.read_text() for path in restored.iterdir()} == {"params": "p100", "shared": "same"}
    checkpoints.clear()
    assert checkpoints.latest() is None


def test_the_doctor_looks_at_stores_of_every_kind(url: str) -> None:
    said = doctor.check_store(lambda: find_store(url))
    assert said.startswith(f"{url}: write, conditional create and replace, read and delete work")
    assert list(open_store(url).list("")) == []


def test_the_doctor_passes_on_what_is_wrong_with_a_bucket(s3: Server) -> None:
    finding = doctor.try_out("store", lambda: doctor.check_store(lambda: find_store("s3://no-such-bucket/x")))
    assert not finding.ok
    assert "NoSuchBucket" in finding.detail
    assert finding.cure
