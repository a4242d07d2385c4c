"""Explaining, reusing, collecting and copying over every kind of store."""

from __future__ import annotations

import time

from artifacts.collect import DAY, Collector
from artifacts.copying import copy_record, copy_release
from artifacts.explain import KeyIndex
from artifacts.lineage import verify
from artifacts.pins import pin, unpin
from artifacts.releases import publish, resolve
from artifacts.repository import Repository, record_name
from artifacts.reuse import notes
from artifacts.store import open_store

DATE = "2026-01-02T03:04:05Z"


def collect(repository: Repository, after_days: float) -> tuple[str, ...]:
    """The records that a collection so many days from now deletes."""
    collector = Collector(repository, clock=lambda: time.time() + after_days * DAY)
    return collector.sweep(collector.find()).records


def test_what_nobody_needs_goes_and_a_released_model_stays_whole(workshop, store) -> None:
    workshop.repository = Repository(store)
    data = workshop.data()
    kept, spare = workshop.train(data, rate=0.1), workshop.train(data, rate=0.2)
    publish(workshop.repository, "nano", kept.record_digest, {}, DATE)
    assert collect(workshop.repository, 0.5) == ()
    pin(workshop.repository, spare.record_digest, "mine", DATE)
    assert collect(workshop.repository, 30) == ()
    unpin(workshop.repository, spare.record_digest)
    assert collect(workshop.repository, 30) == (record_name(spare.record_digest),)
    assert verify(workshop.repository, kept.record_digest) == []
    assert workshop.train(data, rate=0.1).cached
    assert not workshop.train(data, rate=0.2).cached


def test_a_model_goes_to_another_store_and_back(workshop, store, tmp_path) -> None:
    source = workshop.repository = Repository(open_store(f"file:{tmp_path}/origin"))
    model = workshop.train(workshop.data())
    publish(source, "nano", model.record_digest, {"loss": 1.5}, DATE)
    there, back = Repository(store), Repository(open_store(f"file:{tmp_path}/back"))
    for origin, target, sent in ((source, there, 3), (source, there, 0), (there, back, 3)):
        release = resolve(origin, "nano")
        assert copy_record(origin, target, release.record, tmp_path / "work").sent == sent
        assert copy_release(origin, target, release) == 1
        assert verify(target, model.record_digest) == []
    assert all(back.store.read(name) == source.store.read(name) for name in back.store.list(""))


def test_a_hit_on_an_old_key_makes_it_young_again(workshop, store) -> None:
    start = time.time()
    workshop.repository = Repository(store, clock=lambda: start)
    made = workshop.data()
    first = store.modified(f"keys/{made.key}.json")
    assert workshop.data().cached
    assert store.modified(f"keys/{made.key}.json") == first
    time.sleep(1.1)  # S3 and Google count whole seconds
    workshop.repository = Repository(store, clock=lambda: start + DAY)
    assert workshop.data().cached
    assert store.modified(f"keys/{made.key}.json") > first
    assert workshop.repository.find(made.key) is not None


def test_an_edit_is_explained_and_its_record_reused(workshop, store) -> None:
    workshop.repository = Repository(store)
    data = workshop.data()
    made = workshop.train(data)
    workshop.write("nanocode/optimizer.py", "RATE = 0.2\n")
    key = KeyIndex(workshop.repository).of_step("train")[0]
    assert key.record == made.record_digest
    build = workshop.build
    workshop.build = lambda *arguments, **more: build(*arguments, **more, reuse=frozenset({"train"}))
    assert workshop.train(data).record_digest == made.record_digest
    (note,) = notes(workshop.repository)
    assert (note.record, note.modules) == (made.record_digest, ("nanocode.optimizer",))
