"""A bad network between Google's client and a server of its protocol: right, or one clear error.

Torn requests are not among the faults: the real server checks what the client sends with them, this one does not.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.gcs_store import GcsStore
from artifacts.retry import Patience
from artifacts.store import StoreError
from artifacts.transfer import Transfers
from tests.faulty_proxy import Proxy, faulty_proxy, some_slow
from tests.servers import Server
from tests.store_requests import every_request

FAULTS = ("500", "502", "503", "reset", "lost answer", "500 after", "reset in body")
FAST = ("503", "lost answer", "reset in body")
PART_BYTES = 256 << 10
ATTEMPTS = 4


@pytest.fixture(scope="module")
def running_proxy(gcs_server: Server) -> Iterator[Proxy]:
    with faulty_proxy(gcs_server.address) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: Proxy, gcs: Server, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    running_proxy.forget()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", running_proxy.address)
    return running_proxy


@pytest.fixture
def store(proxy: Proxy, gcs: Server, place: str) -> GcsStore:
    patience = Patience(ATTEMPTS, sleep=lambda seconds: None)
    store = GcsStore(gcs.bucket, place, patience=patience, transfers=Transfers(4, PART_BYTES))
    store.put_if_absent("first", b"")
    return store


@pytest.mark.parametrize("fault", some_slow(FAULTS, fast=FAST))
def test_whatever_happens_once_to_every_request_comes_out_right(
    fault: str, store: GcsStore, proxy: Proxy, tmp_path: Path
) -> None:
    big = tmp_path / "big"
    big.write_bytes(random.Random(4).randbytes(2 * PART_BYTES + 5))
    proxy.plan = lambda call: fault if call.attempt == 1 else None
    every_request(store, big, tmp_path / "copy")
    assert proxy.done[fault] >= 8


@pytest.mark.parametrize("fault", some_slow(FAULTS, fast=FAST))
def test_what_never_gets_better_ends_in_one_line_after_bounded_attempts(
    fault: str, store: GcsStore, proxy: Proxy, tmp_path: Path
) -> None:
    store.put_bytes("known", b"known bytes, long enough to be cut")
    proxy.plan = lambda call: fault
    asks = (
        lambda: store.put_bytes("new", b"new bytes"),
        lambda: store.put_if_absent("created", b"new bytes"),
        lambda: store.read("known"),
        lambda: store.fetch("known", tmp_path / "copy"),
        lambda: list(store.list("")),
    )
    for ask in asks:
        before = len(proxy.calls)
        with pytest.raises(StoreError, match=r"^cannot .* in store gs://") as caught:
            ask()
        assert "\n" not in str(caught.value)
        assert ATTEMPTS <= len(proxy.calls) - before <= 3 * ATTEMPTS
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fault", ["lost answer", "500 after"])
def test_a_lost_answer_to_a_conditional_write_still_names_one_winner(fault: str, store: GcsStore, proxy: Proxy) -> None:
    lost = threading.Semaphore(6)
    proxy.plan = lambda call: fault if call.method == "POST" and lost.acquire(blocking=False) else None
    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(lambda index: store.put_if_absent("key", b"the same bytes"), range(6)))
    assert sum(won) == 1
    assert proxy.done[fault] == 6
