"""The contract of object stores, kept by each kind: a folder, a real S3 server, a server of Google's protocol."""

from __future__ import annotations

import hashlib
import os
import random
import time
import urllib.parse
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.gcs_store import GcsStore
from artifacts.records import ArtifactError
from artifacts.repository import append, blob_name, fetch_files, numbered, put_files
from artifacts.store import MissingObject, ObjectStore, StoreError, WrongStore, open_store
from tests.racing import race

BIG_BYTES = (18 << 20) + 1  # more than two parts


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "file"
    path.write_bytes(random.Random(1).randbytes(BIG_BYTES))
    return path


def test_what_was_put_is_read_measured_listed_and_deleted(store: ObjectStore) -> None:
    store.put_bytes("a/b/small", b"one")
    store.put_bytes("a/b/small", b"two")
    assert store.read("a/b/small") == b"".join(store.stream("a/b/small")) == b"two"
    assert (store.size("a/b/small"), store.size("a/b"), store.size("none")) == (3, None, None)
    assert list(store.list("")) == ["a/b/small"]
    store.delete("a/b/small")
    store.delete("a/b/small")
    assert list(store.list("")) == []
    assert store.size("a/b/small") is None


def test_a_large_file_goes_and_comes_whole(store: ObjectStore, big: Path, tmp_path: Path) -> None:
    sha256 = hashlib.sha256(big.read_bytes()).hexdigest()
    store.put_file("big", big, sha256)
    assert store.size("big") == BIG_BYTES
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    hasher = hashlib.sha256()
    for piece in store.stream("big"):
        assert 0 < len(piece) <= 1 << 20
        hasher.update(piece)
    assert hasher.hexdigest() == sha256
    (tmp_path / "copy").write_bytes(b"changed by its owner")
    assert store.size("big") == BIG_BYTES
    assert {path.name for path in tmp_path.iterdir()} <= {"copy", "store"}


def test_a_file_that_is_not_what_was_announced_is_refused(store: ObjectStore, big: Path, tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"new")
    for path in (big, tmp_path / "small"):
        with pytest.raises(StoreError, match="changed while it was stored"):
            store.put_file("a", path, hashlib.sha256(b"old").hexdigest())
    assert list(store.list("")) == []


def test_an_empty_object_is_an_object(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    store.put_file("empty", tmp_path / "empty", hashlib.sha256(b"").hexdigest())
    store.fetch("empty", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == store.read("empty") == b"".join(store.stream("empty")) == b""
    assert (store.size("empty"), list(store.list("e"))) == (0, ["empty"])
    assert not store.put_if_absent("empty", b"second")


def test_all_names_that_are_allowed_work_and_are_listed_in_order(store: ObjectStore, tmp_path: Path) -> None:
    names = ["k/a-b", "k/a/b", "k/a.b", "k/ab", "k/A@b=c+d,e_f-g.h", "k/+plus", "k/=", f"k/{'n' * 200}", "l/a"]
    for number, name in enumerate(names):
        store.put_bytes(name, str(number).encode())
    assert list(store.list("k/a")) == sorted(names[:4])
    assert list(store.list("")) == sorted(names)
    assert [store.read(name) for name in names] == [str(number).encode() for number in range(len(names))]
    store.fetch("k/A@b=c+d,e_f-g.h", tmp_path / "copy")
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", ".hidden", "a/", "a b"])
def test_other_names_are_refused(store: ObjectStore, name: str) -> None:
    for ask in (store.read, store.size, store.delete, lambda name: store.put_bytes(name, b"")):
        with pytest.raises(StoreError, match="object name"):
            ask(name)


def test_more_names_than_a_server_lists_at_once(store: ObjectStore) -> None:
    names = [f"many/{number:04}" for number in range(1_010)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: put_empty(store, name), names))
    assert list(store.list("many/")) == names


def put_empty(store: ObjectStore, name: str) -> None:
    """Google's client takes 8 ms of computing for one object, so the many go around it."""
    if not isinstance(store, GcsStore):
        store.put_bytes(name, b"")
        return
    name = urllib.parse.quote(store.prefix + name, safe="")
    path = f"/upload/storage/v1/b/{store.bucket}/o?uploadType=media&name={name}"
    urllib.request.urlopen(os.environ["STORAGE_EMULATOR_HOST"] + path, b"").close()


def test_a_missing_object_says_so(store: ObjectStore, tmp_path: Path) -> None:
    asks = (store.read, store.read_tagged, lambda name: list(store.stream(name)))
    for ask in (*asks, lambda name: store.fetch(name, tmp_path / "x")):
        with pytest.raises(MissingObject, match="no object a/b in store"):
            ask("a/b")
    assert list(tmp_path.glob("*x*")) == []
    assert store.modified("a/b") is None


def test_of_sixteen_who_create_exactly_one_does(store: ObjectStore) -> None:
    for attempt in range(1 if store.url.startswith("s3:") else 3):  # SeaweedFS takes seconds over some races
        name = f"keys/{attempt}"
        won = race(range(16), lambda index, name=name: store.put_if_absent(name, str(index).encode()))
        assert len(won) == 1
        assert store.read(name) == str(won[0]).encode()


def test_of_eight_who_replace_what_they_read_exactly_one_does(store: ObjectStore) -> None:
    store.put_bytes("lease", b"start")
    for attempt in range(1 if store.url.startswith("s3:") else 3):
        _, tag = store.read_tagged("lease")
        ideas = [b"%d by %d" % (attempt, index) for index in range(8)]
        won = race(ideas, lambda mine, tag=tag: store.put_if_tag("lease", mine, tag))
        assert won == [store.read("lease")]


def test_nothing_is_replaced_that_changed_or_is_gone(store: ObjectStore) -> None:
    assert not store.put_if_tag("lease", b"mine", "")
    store.put_bytes("lease", b"first")
    assert not store.put_if_tag("lease", b"mine", "")
    _, tag = store.read_tagged("lease")
    store.put_bytes("lease", b"second")
    assert not store.put_if_tag("lease", b"mine", tag)
    assert store.read("lease") == b"second"
    _, tag = store.read_tagged("lease")
    store.delete("lease")
    assert not store.put_if_tag("lease", b"mine", tag)
    assert list(store.list("")) == []


def test_the_time_of_a_write_is_known(store: ObjectStore) -> None:
    store.put_bytes("a", b"")
    assert abs(store.modified("a") - time.time()) < 5


def test_concurrent_writers_of_one_object_leave_one_of_their_versions_whole(store: ObjectStore, tmp_path: Path) -> None:
    versions = [bytes([65 + number]) * 300_000 for number in range(8)]
    race(range(8), lambda index: bool(store.put_bytes("same", versions[index])))
    assert store.read("same") in versions
    store.fetch("same", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() in versions


def test_an_altered_blob_is_found_when_it_is_read(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "data").write_bytes(b"good")
    entries = put_files(store, tmp_path / "folder", blob_name)
    fetch_files(store, entries, tmp_path / "first", blob_name)
    store.put_bytes(blob_name(entries[0].sha256), b"evil")
    with pytest.raises(ArtifactError, match="data was altered in store"):
        fetch_files(store, entries, tmp_path / "second", blob_name)


def test_the_layout_is_marked_with_the_first_write_and_a_newer_one_is_refused(url: str) -> None:
    first = open_store(url)
    assert first.size("store.json") is None
    first.put_if_absent("a", b"")
    assert first.read("store.json") == b'{"schema": 1}'
    assert list(open_store(url).list("")) == ["a"]
    first.put_bytes("store.json", b'{"schema": 2}')
    with pytest.raises(
        WrongStore, match="has schema 2, this nanocode knows 1: use the nanocode that wrote it"
    ) as caught:
        open_store(url)
    assert "\n" not in str(caught.value)
    first.put_bytes("store.json", b"not JSON")
    with pytest.raises(WrongStore, match="malformed"):
        open_store(url)


def test_a_store_that_became_newer_after_it_was_opened_is_not_written_to(url: str) -> None:
    early = open_store(url)
    open_store(url).put_bytes("store.json", b'{"schema": 2}')
    with pytest.raises(WrongStore, match="schema 2"):
        early.put_bytes("a", b"")
    assert list(early.list("")) == []


def test_numbers_are_given_once_whoever_races(store: ObjectStore) -> None:
    race(range(6), lambda index: bool(append(store, "provenance/", str(index).encode())))
    found = numbered(store, "provenance/")
    assert list(found) == list(range(1, 7))
    assert sorted(store.read(each) for each in found.values()) == [str(index).encode() for index in range(6)]
