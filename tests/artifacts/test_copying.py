"""Copying a model version between stores: its whole lineage, whole at any moment, under a number that is true there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from artifacts.build import Built, RunInfo
from artifacts.copying import Copied, copy_record, copy_release
from artifacts.fingerprint import code_fingerprint
from artifacts.lineage import verify
from artifacts.records import ArtifactError
from artifacts.releases import Release, list_releases, publish, resolve
from artifacts.repository import Repository, blob_name, record_name
from artifacts.reuse import accept, notes
from artifacts.store import open_store

DATE = "2026-01-02T03:04:05Z"


@pytest.fixture
def target(tmp_path: Path) -> Repository:
    return Repository(open_store(f"file:{tmp_path}/target"))


@pytest.fixture
def model(workshop) -> Built:
    """A released model that was made of some data; beside it a second one that was not released."""
    data = workshop.data()
    workshop.train(data, rate=0.2)
    made = workshop.train(data, rate=0.1)
    publish(workshop.repository, "nano", made.record_digest, {"loss": 1.5}, DATE)
    return made


def copy(workshop, target: Repository, model: str = "nano") -> tuple[Copied, int]:
    release = resolve(workshop.repository, model)
    copied = copy_record(workshop.repository, target, release.record, workshop.root / "work")
    return copied, copy_release(workshop.repository, target, release)


def names(repository: Repository) -> set[str]:
    return set(repository.store.list(""))


def test_everything_a_release_was_made_of_arrives_and_nothing_else(workshop, target, model):
    copied, version = copy(workshop, target)
    assert (copied.records, copied.blobs, copied.sent, version) == (2, 3, 3, 1)
    assert verify(target, model.record_digest) == []
    assert names(target) < names(workshop.repository)
    assert all(target.store.read(name) == workshop.repository.store.read(name) for name in names(target))
    assert list_releases(target) == list_releases(workshop.repository)
    assert not list((workshop.root / "work").iterdir())


def test_what_was_copied_is_found_by_a_run_there(workshop, target, model):
    copy(workshop, target)
    workshop.repository = target
    assert workshop.train(workshop.data(), rate=0.1).cached


def test_copying_again_sends_nothing_and_keeps_the_version(workshop, target, model):
    copy(workshop, target)
    before = names(target)
    copied, version = copy(workshop, target)
    assert (copied.sent, copied.bytes, version) == (0, 0, 1)
    assert names(target) == before


class Broken(RuntimeError):
    pass


def test_a_copy_that_stops_anywhere_leaves_what_verifies_and_goes_on(workshop, model, tmp_path):
    complete = Repository(open_store(f"file:{tmp_path}/complete"))
    copy(workshop, complete)
    writes = 0
    while True:
        target = Repository(open_store(f"file:{tmp_path}/partial"))
        left = iter(range(writes))
        _breaking(target, left)
        try:
            copy(workshop, target)
            break
        except Broken:
            whole = Repository(open_store(f"file:{tmp_path}/partial"))
            for name in list(whole.store.list("records/")):
                assert verify(whole, name.removeprefix("records/").removesuffix(".json")) == []
            assert list_releases(whole) == []
            copy(workshop, whole)
            assert names(whole) == names(complete)
            shutil.rmtree(tmp_path / "partial")
            writes += 1
    assert writes > 8


def _breaking(target: Repository, left: Any) -> None:
    """Let a store die at the write after the last one that is `left`."""
    for method in ("put_file", "put_bytes", "put_if_absent"):
        real = getattr(target.store, method)

        def write(*arguments: Any, real: Any = real) -> Any:
            if next(left, None) is None:
                raise Broken
            return real(*arguments)

        setattr(target.store, method, write)


def test_an_altered_blob_is_named_and_never_arrives(workshop, target, model):
    (entry,) = workshop.repository.read_record(model.record_digest).files
    workshop.overwrite(blob_name(entry.sha256), b"x" * entry.bytes)
    with pytest.raises(ArtifactError, match=r"weights.bin was altered in store"):
        copy(workshop, target)
    assert target.store.size(record_name(model.record_digest)) is None
    assert list_releases(target) == []


def test_a_missing_input_is_named_and_nothing_is_copied(workshop, target, model):
    workshop.object(record_name(workshop.data().record_digest)).unlink()
    with pytest.raises(
        ArtifactError, match=r"input 'tokens' of train: record .* does not exist.*nothing of it is copied"
    ):
        copy_record(workshop.repository, target, model.record_digest, workshop.root / "work")
    assert names(target) == set()


def test_a_number_that_another_model_has_gives_way_to_the_next_free_one(workshop, target, model):
    other = Workbench(workshop, target).release("other text")
    assert copy(workshop, target)[1] == 2
    assert [each.record for each in list_releases(target)] == [other.record, model.record_digest]
    assert resolve(target, "nano@2").metrics == {"loss": 1.5}
    assert verify(target, model.record_digest) == []


def test_versions_keep_their_numbers_where_those_are_free_in_any_order(workshop, target, model):
    second = workshop.train(workshop.data(), rate=0.3)
    publish(workshop.repository, "nano", second.record_digest, {}, DATE)
    assert copy(workshop, target, "nano@2")[1] == 2
    assert copy(workshop, target, "nano@1")[1] == 1
    assert list_releases(target) == list_releases(workshop.repository)
    assert verify(target, model.record_digest) == []


def test_a_record_that_has_the_name_there_already_keeps_its_version(workshop, target, model):
    Workbench(workshop, target).release("other text")
    copy(workshop, target)
    assert copy(workshop, target)[1] == 2
    assert len(list_releases(target)) == 2


def test_another_making_of_the_same_record_is_told_beside_the_first(workshop, target, model):
    source, workshop.repository = workshop.repository, target
    # Somebody else's: two makings of the same second by one user may tell the same in every byte.
    again = workshop.train(workshop.data(), rate=0.1, run=RunInfo("TestFlow", "8", "another"))
    assert again.record_digest == model.record_digest
    first = target.provenances(model.record_digest)
    workshop.repository = source
    _, version = copy(workshop, target)
    assert target.provenances(model.record_digest) == [*first, *source.provenances(model.record_digest)]
    assert verify(target, model.record_digest) == []
    assert version == 1
    assert copy(workshop, target)[1] == 1
    assert len(target.provenances(model.record_digest)) == 2


def test_an_edited_release_is_not_copied(workshop, target, model):
    release = resolve(workshop.repository, "nano")
    workshop.overwrite(release.object, workshop.object(release.object).read_bytes().replace(b"1.5", b"0.5"))
    with pytest.raises(ArtifactError, match="was edited"):
        copy(workshop, target)


def test_notes_of_reuse_travel_with_their_record(workshop, target, model):
    workshop.write("nanocode/optimizer.py", "RATE = 0.3\n")
    record = workshop.repository.read_record(model.record_digest)
    payload = workshop.repository.read_key(model.key).payload
    payload = {**payload, "code": code_fingerprint("steps.train", root=workshop.root).fingerprint}
    accept(workshop.repository, "ab" * 32, payload, record.name, "steps.train", workshop.root, {"run_id": "2"})
    copy(workshop, target)
    assert notes(target) == notes(workshop.repository) != []


class Workbench:
    """Makes and releases something of its own in another store."""

    def __init__(self, workshop, repository: Repository) -> None:
        self.workshop, self.repository = workshop, repository

    def release(self, text: str) -> Release:
        own, self.workshop.repository = self.workshop.repository, self.repository
        made = self.workshop.data({"text": text}, text)
        self.workshop.repository = own
        publish(self.repository, "nano", made.record_digest, {}, DATE)
        return resolve(self.repository, "nano")
