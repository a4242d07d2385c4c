"""The folder store: whole objects or none, one winner of a race, errors in one line."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from artifacts import file_store
from artifacts.file_store import FileStore
from artifacts.store import MissingObject, StoreError, WrongStore, open_store
from tests.racing import race

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    """A store that was written to before."""
    marked = FileStore(tmp_path / "store")
    marked.put_bytes("first", b"")
    marked.delete("first")
    return marked


def leftovers(store: FileStore) -> list[Path]:
    return [path for path in store.root.rglob("*") if path.is_file() and file_store.TEMPORARY in path.parts]


def test_what_was_put_is_read_listed_measured_fetched_and_deleted(store, tmp_path):
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    store.put_file("a/big", tmp_path / "file")
    store.put_bytes("a/b/small", b"one")
    store.put_bytes("a/b/small", b"two")
    assert store.read("a/b/small") == b"two"
    assert b"".join(store.stream("a/big")) == store.read("a/big") == b"x" * 3_000_000
    assert (store.size("a/big"), store.size("a/b"), store.size("none")) == (3_000_000, None, None)
    store.fetch("a/big", tmp_path / "copy")
    (tmp_path / "copy").write_bytes(b"changed by its owner")
    assert store.size("a/big") == 3_000_000
    assert list(store.list("a/b")) == ["a/b/small", "a/big"]
    store.delete("a/big")
    store.delete("a/big")
    assert list(store.list("")) == ["a/b/small"]


def test_listing_is_sorted_by_name_and_takes_any_prefix(store):
    names = ["k/a-b", "k/a/b", "k/a.b", "k/ab", "l/a"]
    for name in names:
        store.put_bytes(name, b"")
    assert list(store.list("k/a")) == sorted(names[:4])
    assert list(store.list("nothing/here")) == []


@pytest.mark.parametrize("name", ["", "/a", "a//b", "../a", "a/../b", ".temporary/x", "a/", "a b", "a\\b"])
def test_unsafe_names_are_refused(store, name):
    with pytest.raises(StoreError, match="object name"):
        store.put_bytes(name, b"")


def test_of_sixteen_racers_exactly_one_creates_and_its_bytes_stay(store):
    for attempt in range(20):
        name = f"keys/{attempt}"
        won = race(range(16), lambda number, name=name: store.put_if_absent(name, str(number).encode() * 1000))
        assert len(won) == 1
        assert store.read(name) == str(won[0]).encode() * 1000
    assert leftovers(store) == []


@pytest.mark.parametrize("put", ["put_bytes", "put_if_absent", "put_file"])
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(store, put, tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"y" * 100)
    calls = []

    def full(descriptor: int, data: memoryview) -> int:
        if calls:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        calls.append(real(descriptor, data[:10]))
        return calls[0]

    real = os.write
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StoreError, match="No space left on device") as caught:
        getattr(store, put)("a/b", tmp_path / "file" if put == "put_file" else b"y" * 100)
    monkeypatch.undo()
    assert "a/b" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert calls == [10]
    assert store.size("a/b") is None
    assert list(store.list("")) == leftovers(store) == []


@pytest.mark.parametrize("put", ["put_bytes", "put_if_absent"])
@pytest.mark.parametrize("instant", ["fsync", "fchmod", "write"])
def test_a_kill_at_any_instant_before_the_commit_shows_no_object(store, put, instant):
    script = f"""
        import os, signal
        from pathlib import Path
        from artifacts.file_store import FileStore
        store = FileStore(Path({str(store.root)!r}))
        store.put_bytes("before", b"1")
        os.{instant} = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        store.{put}("during", b"2" * 100_000)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert list(store.list("")) == ["before"]
    assert store.put_if_absent("during", b"3")
    assert store.read("during") == b"3"


def test_a_file_that_changes_while_it_is_stored_is_refused(store, tmp_path):
    (tmp_path / "file").write_bytes(b"new")
    with pytest.raises(StoreError, match="changed while it was stored"):
        store.put_file("a", tmp_path / "file", hashlib.sha256(b"old").hexdigest())
    assert list(store.list("")) == leftovers(store) == []


def test_objects_are_read_only(store):
    store.put_bytes("a", b"")
    assert store.put_if_absent("b", b"")
    assert [(store.root / name).stat().st_mode & 0o777 for name in ("a", "b")] == [0o444, 0o444]


def test_a_missing_object_says_so(store, tmp_path):
    for ask in (store.read, lambda name: list(store.stream(name)), lambda name: store.fetch(name, tmp_path / "x")):
        with pytest.raises(MissingObject, match="no object a/b"):
            ask("a/b")


def test_a_name_that_needs_a_folder_where_an_object_is_fails_clearly(store):
    store.put_bytes("a", b"")
    with pytest.raises(StoreError, match="cannot store a/b"):
        store.put_bytes("a/b", b"")


@pytest.mark.parametrize("url", ["file:place", "file:./place", "file:{root}/place", "file://{root}/place"])
def test_file_urls_are_relative_to_the_root_given(tmp_path, url):
    store = open_store(url.format(root=tmp_path), tmp_path)
    assert isinstance(store, FileStore)
    assert store.root == tmp_path / "place"


@pytest.mark.parametrize("url", ["s4://bucket", "place", "file:", "file://host/place", ""])
def test_other_urls_are_refused_with_what_is_supported(url):
    with pytest.raises(WrongStore, match="file:") as caught:
        open_store(url)
    assert "\n" not in str(caught.value)


def test_of_eight_who_replace_what_they_read_exactly_one_does(store):
    store.put_bytes("lease", b"start")
    for attempt in range(20):
        _, tag = store.read_tagged("lease")
        ideas = [f"{attempt}-{number}".encode() for number in range(8)]
        won = race(ideas, lambda mine, tag=tag: store.put_if_tag("lease", mine, tag))
        assert won == [store.read("lease")]
    assert leftovers(store) == []


def test_nothing_is_replaced_that_changed_or_is_gone(store):
    assert not store.put_if_tag("lease", b"mine", "any")
    store.put_bytes("lease", b"first")
    _, tag = store.read_tagged("lease")
    store.put_bytes("lease", b"second")
    assert not store.put_if_tag("lease", b"mine", tag)
    _, tag = store.read_tagged("lease")
    store.delete("lease")
    assert not store.put_if_tag("lease", b"mine", tag)
    assert list(store.list("")) == leftovers(store) == []


def test_the_lock_of_a_killed_holder_is_free(store):
    store.put_bytes("lease", b"first")
    script = f"""
        import os, signal
        from pathlib import Path
        from artifacts import file_store
        file_store._replace = lambda *arguments: os.kill(os.getpid(), signal.SIGKILL)
        store = file_store.FileStore(Path({str(store.root)!r}))
        store.put_if_tag("lease", b"second", store.read_tagged("lease")[1])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], cwd=PROJECT, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert store.put_if_tag("lease", b"third", store.read_tagged("lease")[1])
    assert store.read("lease") == b"third"


def test_the_time_of_a_write_is_known(store):
    before = time.time()
    store.put_bytes("a", b"")
    assert before - 1 < store.modified("a") < time.time() + 1
    assert store.modified("b") is None
