"""The cache of remote blobs: nothing is downloaded twice, nothing wrong comes out, the limit holds."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.cached_store import CachedStore
from artifacts.file_store import FileStore
from artifacts.records import ArtifactError, FileEntry
from artifacts.repository import blob_name, fetch_files
from artifacts.store import StoreSettings, open_store
from tests.servers import Server


class Counting(FileStore):
    """A store that counts what is fetched from it."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.fetched: Counter[str] = Counter()
        self.lock = threading.Lock()

    def fetch(self, name: str, path: Path) -> None:
        with self.lock:
            self.fetched[name] += 1
        super().fetch(name, path)


@pytest.fixture
def store(tmp_path: Path) -> Counting:
    return Counting(tmp_path / "store")


def put(store: FileStore, data: bytes) -> str:
    sha256 = hashlib.sha256(data).hexdigest()
    store.put_bytes(blob_name(sha256), data)
    return sha256


def cached(store: FileStore, tmp_path: Path, max_bytes: int = 1_000_000, **kwargs: object) -> CachedStore:
    return CachedStore(store, tmp_path / "cache", max_bytes, **kwargs)  # type: ignore[arg-type]


def kept(tmp_path: Path) -> set[str]:
    return {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}


def test_a_blob_is_downloaded_once_whoever_asks(store: Counting, tmp_path: Path) -> None:
    sha256 = put(store, b"content")
    for number in range(3):
        cached(store, tmp_path).fetch(blob_name(sha256), tmp_path / f"copy-{number}")
        assert (tmp_path / f"copy-{number}").read_bytes() == b"content"
        (tmp_path / f"copy-{number}").write_bytes(b"the caller's own, changed")
    assert store.fetched == {blob_name(sha256): 1}
    assert kept(tmp_path) == {sha256}


def test_only_what_is_named_by_its_hash_is_kept(store: Counting, tmp_path: Path) -> None:
    store.put_bytes("keys/a.json", b"first")
    mine = cached(store, tmp_path)
    mine.fetch("keys/a.json", tmp_path / "copy")
    store.put_bytes("keys/a.json", b"second")
    mine.fetch("keys/a.json", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"second"
    assert kept(tmp_path) == set()


@pytest.mark.parametrize("harm", [b"", b"conten", b"CONTENT"])
def test_a_copy_that_was_harmed_is_downloaded_again(store: Counting, tmp_path: Path, harm: bytes) -> None:
    sha256 = put(store, b"content")
    mine = cached(store, tmp_path)
    mine.fetch(blob_name(sha256), tmp_path / "copy")
    (tmp_path / "cache" / sha256[:2] / sha256).write_bytes(harm)
    mine.fetch(blob_name(sha256), tmp_path / "copy")
    mine.fetch(blob_name(sha256), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert store.fetched[blob_name(sha256)] == 2


def test_a_blob_altered_in_the_store_is_not_kept_and_is_found_by_the_reader(store: Counting, tmp_path: Path) -> None:
    sha256 = put(store, b"content")
    store.put_bytes(blob_name(sha256), b"altered")
    with pytest.raises(ArtifactError, match="data was altered"):
        fetch_files(cached(store, tmp_path), [FileEntry("data", 7, sha256)], tmp_path / "out", blob_name)
    assert kept(tmp_path) == set()


def test_what_was_used_last_stays_within_the_limit(store: Counting, tmp_path: Path) -> None:
    blobs = [put(store, bytes([number]) * 300) for number in range(4)]
    mine = cached(store, tmp_path, max_bytes=1_000)
    for age, sha256 in enumerate(blobs[:3]):
        mine.fetch(blob_name(sha256), tmp_path / "copy")
        os.utime(tmp_path / "cache" / sha256[:2] / sha256, (1_000 + age, 1_000 + age))
    mine.fetch(blob_name(blobs[0]), tmp_path / "copy")
    mine.fetch(blob_name(blobs[3]), tmp_path / "copy")
    assert kept(tmp_path) == {blobs[0], blobs[2], blobs[3]}


def test_what_is_larger_than_the_cache_passes_by(store: Counting, tmp_path: Path) -> None:
    small, large = put(store, b"small"), put(store, b"large" * 100)
    mine = cached(store, tmp_path, max_bytes=100)
    for sha256 in (small, large):
        mine.fetch(blob_name(sha256), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"large" * 100
    assert kept(tmp_path) == {small}


def test_many_at_once_with_room_for_few_all_get_their_bytes(store: Counting, tmp_path: Path) -> None:
    contents = [bytes([number]) * 400 for number in range(10)]
    blobs = [put(store, content) for content in contents]
    caches = [cached(store, tmp_path, max_bytes=1_500) for _ in range(4)]

    def use(number: int) -> bool:
        target = tmp_path / f"copy-{number}"
        caches[number % 4].fetch(blob_name(blobs[number * 7 % 10]), target)
        return target.read_bytes() == contents[number * 7 % 10]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(use, range(120)))
    assert len(kept(tmp_path)) <= 4 + len(caches)


def test_a_cache_that_cannot_be_written_is_said_and_harms_nothing(store: Counting, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    warnings: list[str] = []
    sha256 = put(store, b"content")
    cached(store, tmp_path, warn=warnings.append).fetch(blob_name(sha256), tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"content"
    assert len(warnings) == 1
    assert "nothing is kept in" in warnings[0]


def test_bucket_stores_are_cached_and_folders_are_not(s3: Server, place: str, tmp_path: Path) -> None:
    settings = StoreSettings(tmp_path / "cache", 1_000)
    remote = open_store(f"s3://{s3.bucket}/{place}", settings=settings)
    assert isinstance(remote, CachedStore)
    sha256 = hashlib.sha256(b"content").hexdigest()
    remote.put_bytes(blob_name(sha256), b"content")
    remote.fetch(blob_name(sha256), tmp_path / "copy")
    remote.delete(blob_name(sha256))
    assert remote.size(blob_name(sha256)) is None
    remote.fetch(blob_name(sha256), tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == b"content"
    assert isinstance(open_store(f"file:{tmp_path / 'store'}", settings=settings), FileStore)
    assert not isinstance(open_store(remote.url, settings=StoreSettings(tmp_path / "cache", 0)), CachedStore)
