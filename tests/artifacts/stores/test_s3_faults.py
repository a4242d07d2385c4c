"""A bad network between boto and a real server: everything comes out right, or as one clear error; never half."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from artifacts.checkpoints import CheckpointStore
from artifacts.repository import append, blob_name, fetch_files, put_files
from artifacts.retry import Patience
from artifacts.s3_store import S3Store
from artifacts.store import MARKER, StoreError, open_store
from artifacts.transfer import Transfers
from tests.faulty_proxy import FAULTS, Call, Proxy, faulty_proxy, some_slow
from tests.servers import Server
from tests.store_requests import every_request

PART_BYTES = 5 << 20  # the least that S3 takes
ATTEMPTS = 4
SILENCE_SECONDS = 0.5
PERMANENT = ("503", "torn request", "lost answer", "truncated")  # the others are like one of these


@pytest.fixture(scope="module")
def running_proxy(s3_server: Server) -> Iterator[Proxy]:
    with faulty_proxy(s3_server.address) as proxy:
        yield proxy


@pytest.fixture
def proxy(running_proxy: Proxy, s3: Server, monkeypatch: pytest.MonkeyPatch) -> Proxy:
    """The proxy as new, and the environment that leads through it."""
    running_proxy.forget()
    monkeypatch.setenv("AWS_ENDPOINT_URL", running_proxy.address)
    return running_proxy


@pytest.fixture
def store(proxy: Proxy, s3: Server, place: str) -> S3Store:
    """A store behind the proxy that was written to before."""
    return behind(s3, place)


@pytest.fixture
def impatient(proxy: Proxy, s3: Server, place: str) -> S3Store:
    """A store behind the proxy that was written to before, and does not wait long for a silent server."""
    return behind(s3, place, SILENCE_SECONDS)


def behind(server: Server, place: str, silence_seconds: float = 30.0) -> S3Store:
    patience, transfers = Patience(ATTEMPTS, sleep=lambda seconds: None), Transfers(4, PART_BYTES)
    store = S3Store(server.bucket, place, patience=patience, transfers=transfers, timeout=(5.0, silence_seconds))
    store.put_if_absent("first", b"")
    return store


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("big") / "file"
    path.write_bytes(random.Random(2).randbytes(PART_BYTES + 12_345))
    return path


def at_first(fault: str, times: int = 1) -> Callable[[Call], str | None]:
    """Every request meets the fault the first time (or times) that it is made."""
    return lambda call: fault if call.attempt <= times else None


@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_happens_once_to_every_request_comes_out_right(
    fault: str, request: pytest.FixtureRequest, proxy: Proxy, big: Path, tmp_path: Path
) -> None:
    store: S3Store = request.getfixturevalue("impatient" if fault == "stall" else "store")
    proxy.plan, proxy.stall_seconds = at_first(fault), 1.6 * SILENCE_SECONDS
    if fault == "stall":  # half a second each: not all of them
        proxy.plan = lambda call: (
            fault if call.attempt == 1 and call.method == "GET" and "big" not in call.path else None
        )
    every_request(store, big, tmp_path / "copy")
    assert proxy.done[fault] >= (3 if fault == "stall" else 10)


@pytest.mark.parametrize("fault", some_slow([each for each in FAULTS if each != "stall"], fast=PERMANENT))
def test_what_never_gets_better_ends_in_one_line_after_bounded_attempts(
    fault: str, store: S3Store, proxy: Proxy, big: Path, tmp_path: Path
) -> None:
    store.put_bytes("known", b"known bytes, long enough to be cut")
    proxy.plan = lambda call: fault
    asks: dict[str, Callable[[], object]] = {
        "put": lambda: store.put_bytes("new", b"new bytes"),
        "create": lambda: store.put_if_absent("created", b"new bytes"),
        "read": lambda: store.read("known"),
        "fetch": lambda: store.fetch("known", tmp_path / "copy"),
        "list": lambda: list(store.list("")),
        "put big": lambda: store.put_file("big", big),
    }
    # Requests without a body are not torn, answers without one are not truncated.
    unharmed = {"torn request": ("read", "fetch", "list"), "truncated": ("put", "create")}.get(fault, ())
    asks = {name: ask for name, ask in asks.items() if name not in unharmed}
    for name, ask in asks.items():
        before = len(proxy.calls)
        with pytest.raises(StoreError, match=r"^cannot .* in store s3://") as caught:
            ask()
        assert "\n" not in str(caught.value), name
        assert caught.value.transient, "the run may be started again"
        assert ATTEMPTS <= len(proxy.calls) - before <= 10 * ATTEMPTS, name
    assert list(tmp_path.iterdir()) == []
    proxy.plan = lambda call: None
    assert set(store.list("")) <= {"first", "known", "new", "created", "big"}
    for name, expected in (("new", b"new bytes"), ("created", b"new bytes"), ("big", big.read_bytes())):
        assert store.size(name) is None or store.read(name) == expected


def test_a_silent_server_is_given_up_in_bounded_time(impatient: S3Store, proxy: Proxy) -> None:
    impatient.put_bytes("known", b"known bytes")
    proxy.plan, proxy.stall_seconds = (lambda call: "stall"), 2.0
    with pytest.raises(StoreError, match="Read timeout"):
        impatient.read("known")
    assert proxy.done["stall"] == ATTEMPTS


@pytest.mark.parametrize("fault", ["lost answer", "500 after"])
@pytest.mark.parametrize("racers", [1, 6])
def test_a_lost_answer_to_a_conditional_write_still_names_one_winner(
    fault: str, racers: int, store: S3Store, proxy: Proxy
) -> None:
    """Also when all write the same bytes: the winner is known by its mark, not by what it wrote."""
    lost = threading.Semaphore(racers)
    proxy.plan = lambda call: fault if call.method == "PUT" and lost.acquire(blocking=False) else None
    with ThreadPoolExecutor(racers) as pool:
        won = list(pool.map(lambda index: store.put_if_absent("key", b"the same bytes"), range(racers)))
    assert sum(won) == 1
    _, tag = store.read_tagged("key")
    lost = threading.Semaphore(racers)
    with ThreadPoolExecutor(racers) as pool:
        won = list(pool.map(lambda index: store.put_if_tag("key", b"racer %d" % index, tag), range(racers)))
    assert sum(won) == 1
    assert store.read("key") == b"racer %d" % won.index(True)
    assert proxy.done[fault] == 2 * racers


def test_an_object_that_is_replaced_while_it_is_fetched_comes_in_one_version(
    store: S3Store, proxy: Proxy, s3: Server, big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions = [big.read_bytes(), big.read_bytes()[::-1]]
    (tmp_path / "other").write_bytes(versions[1])
    store.put_file("big", big)
    direct = S3Store(s3.bucket, store.prefix.rstrip("/"), transfers=Transfers(4, PART_BYTES))
    once = threading.Semaphore(1)

    def replace_before_the_second_part(call: Call) -> None:
        if call.span.startswith(f"bytes={PART_BYTES}-") and once.acquire(blocking=False):
            direct.put_file("big", tmp_path / "other")

    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.address)
    direct.size("big")  # connects past the proxy
    proxy.plan = replace_before_the_second_part
    store.fetch("big", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == versions[1]


def test_old_lists_harm_neither_numbers_nor_checkpoints(store: S3Store, proxy: Proxy, tmp_path: Path) -> None:
    """A list that is out of date may cost work, never correctness."""
    proxy.plan = lambda call: "stale" if call.method == "GET" and "list-type" in call.path else None
    assert [append(store, "numbers/", b"%d" % each) for each in range(3)] == [1, 2, 3]
    checkpoints = CheckpointStore(store, "k" * 64)
    (tmp_path / "state").mkdir()
    assert checkpoints.latest() is None
    for step in (1, 2):
        (tmp_path / "state" / "params").write_text(f"after {step}")
        checkpoints.save(step, tmp_path / "state", {})
    assert checkpoints.latest() is None  # the list is the one from before the first
    proxy.plan = lambda call: None
    newest = checkpoints.latest()
    assert newest is not None and newest.step == 2
    proxy.plan = lambda call: "stale" if call.method == "GET" and "list-type" in call.path else None
    proxy._kept.clear()
    assert checkpoints.latest() == newest
    store.delete(f"{checkpoints.prefix}manifests/2.json")
    found = checkpoints.latest()
    assert found is not None and found.step == 1
    restored = checkpoints.restore(found, tmp_path / "restored")
    assert (restored / "params").read_text() == "after 1"


def test_folders_go_and_come_through_any_mixture_of_faults(store: S3Store, proxy: Proxy, tmp_path: Path) -> None:
    faults, draw = [fault for fault in FAULTS if fault != "stall"], random.Random(3)
    proxy.plan = lambda call: draw.choice(faults) if call.attempt < ATTEMPTS and draw.random() < 0.4 else None
    source = tmp_path / "source"
    source.mkdir()
    for number in range(12):
        (source / f"{number}.bin").write_bytes(draw.randbytes(number * 40_000))
    entries = put_files(store, source, blob_name)
    fetch_files(store, entries, tmp_path / "copy", blob_name)
    assert {path.name: path.read_bytes() for path in (tmp_path / "copy").iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }
    assert sum(proxy.done[fault] for fault in faults) > 10


def test_a_wrong_clock_is_named(store: S3Store, proxy: Proxy, s3: Server) -> None:
    proxy.plan = lambda call: "skewed"
    with pytest.raises(StoreError, match=r"RequestTimeTooSkewed .*clock is wrong: set it") as caught:
        open_store(store.url)
    assert not caught.value.transient
    assert [call.path.rpartition("/")[2] for call in proxy.calls[-1:]] == [MARKER]


def test_credentials_that_expire_at_the_first_write_are_not_taken_for_a_poor_server(
    proxy: Proxy, s3: Server, place: str
) -> None:
    store = open_store(f"s3://{s3.bucket}/{place}")
    proxy.plan = lambda call: "expired" if call.method == "PUT" else None
    with pytest.raises(StoreError, match=r"ExpiredToken .*: the session is over: get new credentials") as caught:
        store.put_bytes("a", b"")
    assert "conditional" not in str(caught.value)
    proxy.plan = lambda call: None
    store.put_bytes("a", b"")
    assert list(store.list("")) == ["a"]
