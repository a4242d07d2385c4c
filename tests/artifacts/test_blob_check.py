"""Checking blobs in parallel: every byte is counted, the result does not depend on who was first, failures come out."""

from __future__ import annotations

import hashlib
import threading

import pytest

from artifacts.blob_check import blob_faults
from artifacts.records import FileEntry
from artifacts.repository import blob_name
from artifacts.store import CHUNK_BYTES, StoreError, open_store


@pytest.fixture
def filled(tmp_path):
    """A store with blobs from empty to several pieces, and what each is called."""
    store = open_store("file:store", tmp_path)
    files = {}
    for index, size in enumerate([0, 1, CHUNK_BYTES, 3 * CHUNK_BYTES + 7, 100, CHUNK_BYTES + 1, 5]):
        data = bytes([index]) * size
        entry = FileEntry(f"file{index}", size, hashlib.sha256(data).hexdigest())
        store.put_bytes(blob_name(entry.sha256), data)
        files[entry] = f"nano/data: file{index}"
    return store, files


def test_progress_rises_to_the_sum_and_is_never_told_by_two_threads_at_once(filled):
    store, files = filled
    heard, inside = [], threading.Lock()

    def progress(done: int, total: int) -> None:
        assert inside.acquire(blocking=False)
        heard.append((done, total))
        inside.release()

    assert blob_faults(store, files, progress) == []
    size = sum(entry.bytes for entry in files)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)
    assert heard[-1] == (size, size)
    assert len(heard) >= size // CHUNK_BYTES


def test_faults_come_in_the_order_of_the_files_however_large_they_are(filled, tmp_path):
    store, files = filled
    for entry in files:
        path = tmp_path / "store" / blob_name(entry.sha256)
        path.chmod(0o644)
        path.write_bytes(b"vandal " * (1 + entry.bytes // 7))
    found = [fault.object for fault in blob_faults(store, files, lambda done, total: None)]
    assert found == [blob_name(entry.sha256) for entry in files]


def test_no_files_are_no_faults(filled):
    assert blob_faults(filled[0], {}, lambda done, total: None) == []


def test_a_store_that_fails_is_no_fault_of_the_blob(filled, monkeypatch):
    store, files = filled

    def broken(name):
        raise StoreError("the store is down")

    monkeypatch.setattr(store, "stream", broken)
    with pytest.raises(StoreError, match="down"):
        blob_faults(store, files, lambda done, total: None)
