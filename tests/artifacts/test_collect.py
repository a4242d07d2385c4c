"""Collecting garbage: what is kept and why, that an interruption breaks nothing, that a writer beside it is safe."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Built, Stage
from artifacts.checkpoints import CheckpointStore
from artifacts.collect import DAY, Collector, Garbage, Policy
from artifacts.lease import Holding, lease_name
from artifacts.lineage import verify
from artifacts.pins import list_pins, pin, unpin
from artifacts.records import ArtifactError
from artifacts.releases import publish
from artifacts.repository import Repository, blob_name, key_name, record_name
from artifacts.store import open_store

LATER = 30 * DAY
DATE = "2026-01-02T03:04:05Z"


def collector(workshop, after: float = LATER, policy: Policy | None = None, **fields: Any) -> Collector:
    """A collection that takes place so many seconds from now."""
    return Collector(workshop.repository, policy or Policy(), lambda: time.time() + after, **fields)


def collect(workshop, after: float = LATER) -> Garbage:
    found = collector(workshop, after)
    return found.sweep(found.find())


def everything(workshop) -> list[str]:
    return list(workshop.repository.store.list(""))


def names_of(workshop, built: Built) -> set[str]:
    """The objects of one record that is not shared."""
    record = workshop.repository.read_record(built.record_digest)
    own = {record_name(built.record_digest), key_name(built.key), f"provenance/{built.record_digest}/1.json"}
    return own | {blob_name(entry.sha256) for entry in record.files}


@pytest.fixture
def chain(workshop) -> tuple[Built, Built, Built]:
    """Data, a model made of it, and a second model made of the same data."""
    data = workshop.data()
    return data, workshop.train(data, rate=0.1), workshop.train(data, rate=0.2)


def test_a_release_keeps_all_that_it_was_made_of_and_the_rest_goes(workshop, chain):
    data, kept, gone = chain
    publish(workshop.repository, "nano", kept.record_digest, {}, DATE)
    names_of_gone = names_of(workshop, gone)
    before = set(everything(workshop))
    deleted = collect(workshop)
    assert before - set(everything(workshop)) == names_of_gone
    assert deleted.records == (record_name(gone.record_digest),)
    assert deleted.keys == (key_name(gone.key),)
    assert len(deleted.blobs) == len(deleted.provenance) == 1
    assert verify(workshop.repository, kept.record_digest) == []
    assert workshop.data().record_digest == data.record_digest
    assert collect(workshop).is_empty


def test_without_a_release_all_of_it_is_garbage_and_finding_deletes_nothing(workshop, chain):
    before = everything(workshop)
    found = collector(workshop).find()
    assert everything(workshop) == before
    assert len(found.records) == 3
    assert found.bytes == sum(
        workshop.object(name).stat().st_size for names in found.kinds().values() for name in names
    )
    collect(workshop)
    assert everything(workshop) == []


def test_records_go_before_those_that_they_were_made_of(workshop, chain):
    data, *_ = chain
    assert collector(workshop).find().records[-1] == record_name(data.record_digest)


def test_what_is_recent_is_kept_with_what_it_was_made_of(workshop, chain):
    assert collector(workshop, 6 * DAY).find().is_empty
    assert not collector(workshop, 8 * DAY).find().is_empty


def test_a_pin_keeps_its_record_until_it_is_taken_away(workshop, chain):
    _, model, _ = chain
    assert pin(workshop.repository, model.record_digest, "mine", DATE)
    assert not pin(workshop.repository, model.record_digest, "again", DATE)
    collect(workshop)
    assert verify(workshop.repository, model.record_digest) == []
    assert [each.asked for each in list_pins(workshop.repository)] == ["mine"]
    assert unpin(workshop.repository, model.record_digest)
    assert not unpin(workshop.repository, model.record_digest)
    collect(workshop)
    assert everything(workshop) == []


def test_a_pin_of_nothing_is_refused(workshop):
    with pytest.raises(ArtifactError, match="does not exist"):
        pin(workshop.repository, "0" * 64, "x", DATE)


def test_a_blob_that_a_kept_record_shares_stays(workshop):
    data = workshop.data()
    same = workshop.build(
        Stage("copy", "tokens", "nano/copy", "steps.data", {}), lambda making: _write(making, "some text")
    )
    publish(workshop.repository, "nano", data.record_digest, {}, DATE)
    deleted = collect(workshop)
    assert deleted.records == (record_name(same.record_digest),)
    assert deleted.blobs == ()
    assert verify(workshop.repository, data.record_digest) == []


def in_progress(workshop, inputs: dict[str, str] | None, expires: float | None) -> str:
    """A stage that somebody began, with a checkpoint and possibly a lease; returns its key."""
    key = "ab" * 32
    folder = workshop.root / "checkpoint"
    folder.mkdir(exist_ok=True)
    (folder / "state").write_bytes(b"weights so far")
    checkpoints = CheckpointStore(workshop.repository.store, key)
    checkpoints.begin_attempt({"step": "train"} | ({"inputs": inputs} if inputs is not None else {}))
    checkpoints.save(3, folder, {})
    if expires is not None:
        workshop.repository.store.put_bytes(lease_name(key), Holding("somebody", 1, expires).to_json())
    return key


def test_a_held_lease_keeps_its_checkpoints_and_what_its_stage_reads(workshop, chain):
    data, *_ = chain
    key = in_progress(workshop, {"tokens": data.record_digest}, time.time() + LATER + 60)
    deleted = collect(workshop)
    assert deleted.checkpoints == ()
    assert len(deleted.records) == 2
    assert verify(workshop.repository, data.record_digest) == []
    assert CheckpointStore(workshop.repository.store, key).latest() is not None


def test_a_held_lease_that_does_not_say_what_it_needs_keeps_every_record(workshop, chain):
    in_progress(workshop, None, time.time() + LATER + 60)
    assert collect(workshop).is_empty


def test_an_unfinished_stage_is_kept_for_as_long_as_a_recent_record(workshop, chain):
    data, *_ = chain
    in_progress(workshop, {"tokens": data.record_digest}, time.time())
    assert collect(workshop, 6 * DAY).is_empty
    deleted = collect(workshop, 8 * DAY)
    assert len(deleted.records) == 3
    assert everything(workshop) == []
    assert [name.split("/")[2] for name in deleted.checkpoints] == ["manifests", "blobs", "attempts", "lease.json"]


def test_checkpoints_of_a_finished_stage_go_although_its_record_stays(workshop):
    data = workshop.data()
    publish(workshop.repository, "nano", data.record_digest, {}, DATE)
    folder = workshop.root / "checkpoint"
    folder.mkdir()
    (folder / "state").write_bytes(b"left behind by a kill after the commit")
    CheckpointStore(workshop.repository.store, data.key).save(1, folder, {})
    assert collect(workshop, DAY / 2).is_empty
    assert len(collect(workshop, 2 * DAY).checkpoints) == 2


def test_blobs_without_a_record_go_when_they_are_old(workshop):
    name = blob_name("cd" * 32)
    workshop.repository.store.put_bytes(name, b"a writer was killed")
    assert collect(workshop, DAY / 2).is_empty
    assert collect(workshop, 2 * DAY).blobs == (name,)


def test_a_record_that_came_into_the_store_lately_is_kept_however_old_its_making(workshop, tmp_path: Path):
    data = workshop.data()
    long_ago = time.time() - LATER
    for path in (workshop.root / "store").rglob("*.json"):
        os.utime(path, (long_ago, long_ago))
    provenance = f"provenance/{data.record_digest}/1.json"
    old = workshop.object(provenance).read_bytes().replace(b'"finished":"20', b'"finished":"10')
    workshop.overwrite(provenance, old)
    os.utime(workshop.object(provenance), (long_ago, long_ago))
    assert len(collector(workshop, 0).find().records) == 1
    os.utime(workshop.object(record_name(data.record_digest)))
    assert collector(workshop, 0).find().is_empty


def test_files_of_killed_writers_go_when_they_are_old(workshop):
    workshop.data()
    publish(workshop.repository, "nano", workshop.data().record_digest, {}, DATE)
    path = workshop.root / "store" / ".temporary" / "half.x1"
    path.write_bytes(b"half")
    assert collector(workshop, DAY / 2).find().is_empty
    found = collector(workshop).find()
    assert (found.temporary, found.bytes) == (("half.x1",), 4)
    collect(workshop)
    assert not path.exists()


def test_a_needed_record_that_cannot_be_read_stops_the_collection(workshop, chain):
    data, model, _ = chain
    publish(workshop.repository, "nano", model.record_digest, {}, DATE)
    workshop.overwrite(record_name(data.record_digest), b"{}")
    with pytest.raises(ArtifactError, match=r"nano@1 needs a record that cannot be read: .*was altered"):
        collector(workshop).find()


def test_an_altered_record_that_nobody_needs_is_kept_and_so_is_every_blob(workshop, chain):
    data, *_ = chain
    workshop.overwrite(record_name(data.record_digest), b"{}")
    told: list[str] = []
    found = collector(workshop, warn=told.append).find()
    assert record_name(data.record_digest) not in found.records
    assert found.blobs == ()
    assert any("was altered" in line for line in told)


def test_a_grace_shorter_than_writers_count_on_is_refused():
    with pytest.raises(ArtifactError, match="grace of more than 1 h"):
        Policy(grace_seconds=3600)


class Broken(RuntimeError):
    pass


def test_an_interruption_after_any_deletion_leaves_a_store_that_verifies(workshop, chain, monkeypatch):
    data, kept, _ = chain
    publish(workshop.repository, "nano", kept.record_digest, {}, DATE)
    workshop.train(workshop.train(data, rate=0.3) and data, rate=0.4)
    in_progress(workshop, {}, None)
    found = collector(workshop).find()
    total = sum(map(len, found.kinds().values()))
    assert total > 12
    original = workshop.root / "store"
    for allowed in range(total):
        copy = workshop.root / f"copy-{allowed}"
        subject = _copied(original, copy)
        with pytest.raises(Broken):
            _interrupted(subject, allowed).sweep(found)
        for name in list(subject.store.list("records/")):
            assert verify(subject, name.removeprefix("records/").removesuffix(".json")) == []
        for name in list(subject.store.list("keys/")):
            assert subject.find(name.removeprefix("keys/").removesuffix(".json")) is not None
        whole = Collector(Repository(open_store(f"file:{copy}")), clock=lambda: time.time() + LATER)
        whole.sweep(whole.find())
        assert verify(subject, kept.record_digest) == []
        assert len(list(subject.store.list(""))) == len(everything(workshop)) - total
        shutil.rmtree(copy)


def _copied(original: Path, copy: Path) -> Repository:
    shutil.copytree(original, copy)
    return Repository(open_store(f"file:{copy}"))


def _interrupted(subject: Repository, allowed: int) -> Collector:
    """A collection that dies instead of deleting one object more."""
    real = subject.store.delete
    left = iter(range(allowed))

    def delete(name: str) -> None:
        if next(left, None) is None:
            raise Broken
        real(name)

    subject.store.delete = delete  # type: ignore[method-assign]
    return Collector(subject, clock=lambda: time.time() + LATER)


def test_what_somebody_comes_to_need_between_finding_and_deleting_stays(workshop, chain):
    _, model, _ = chain
    subject = collector(workshop)
    found = subject.find()
    publish(workshop.repository, "nano", model.record_digest, {}, DATE)
    deleted = subject.sweep(found)
    assert record_name(model.record_digest) not in deleted.records
    assert verify(workshop.repository, model.record_digest) == []


def test_two_collections_at_once_do_the_work_of_one(workshop, chain):
    _, model, _ = chain
    publish(workshop.repository, "nano", model.record_digest, {}, DATE)
    with ThreadPoolExecutor(4) as pool:
        swept = list(pool.map(lambda _: collect(workshop), range(4)))
    assert len({name for each in swept for name in each.records}) == 1
    assert verify(workshop.repository, model.record_digest) == []
    assert collect(workshop).is_empty


def test_a_writer_beside_many_collections_loses_nothing(workshop):
    """Builds want blobs and records that lie around as old garbage, while collections sweep exactly those."""
    rounds = 30

    def produce(number: int) -> Callable[[Any], None]:
        return lambda making: _write(making, f"text of {number % 7}")

    def stage(number: int) -> Stage:
        return Stage("data", "tokens", f"nano/{number % 11}", "steps.data", {"number": number})

    def wanted() -> Iterator[tuple[Stage, Any]]:
        """New stages that make what is there as garbage, and stages that are there."""
        for number in range(rounds):
            yield stage(1000 + number), produce(number)
            yield stage(number % 11), produce(number)

    for number in range(11):
        workshop.build(stage(number), produce(number))
    _make_old(workshop.root / "store")
    with ThreadPoolExecutor(1) as pool:
        writer = pool.submit(lambda: [workshop.build(*asked) for asked in wanted()])
        swept = 0
        while not writer.done():
            subject = Collector(workshop.repository)
            swept += sum(map(len, subject.sweep(subject.find()).kinds().values()))
        built = writer.result()
    assert swept > 0
    for each in built:
        assert verify(workshop.repository, each.record_digest) == []


def _make_old(folder: Path) -> None:
    long_ago = time.time() - LATER
    for path in folder.rglob("*"):
        if path.is_file() and path.name != "store.json":
            if path.parent.parent.name == "provenance":
                path.chmod(0o644)
                path.write_bytes(path.read_bytes().replace(b'"finished":"20', b'"finished":"10'))
            os.utime(path, (long_ago, long_ago))


def _write(making, text: str) -> None:
    (making.output / "0.txt").write_text(text)


def test_a_run_that_finds_an_old_record_keeps_it_like_one_that_made_it(workshop, chain):
    data, *_ = chain
    _make_old(workshop.root / "store")
    assert workshop.data().cached
    found = collector(workshop, 0).find()
    assert len(found.records) == 2
    assert record_name(data.record_digest) not in found.records


def test_a_hit_whose_key_is_swept_in_that_moment_is_a_miss(workshop, monkeypatch):
    data = workshop.data()
    _make_old(workshop.root / "store")
    store = workshop.repository.store
    real = store.put_if_tag
    monkeypatch.setattr(store, "put_if_tag", lambda name, *rest: store.delete(name) or real(name, *rest))
    assert workshop.repository.use(data.key) is None
    assert store.size(key_name(data.key)) is None
