"""Leases: one works, the others wait and follow; who lost his lease writes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from artifacts import owners
from artifacts.build import Build, Stage, cache_key
from artifacts.checkpoints import CheckpointStore
from artifacts.lease import Holding, Lease, LeaseLost, Terms, hold, lease_name, release_all
from artifacts.owners import Owner, describe, is_dead, this_process
from artifacts.store import ObjectStore, StoreError, open_store
from tests.racing import race

PROJECT = Path(__file__).resolve().parents[2]
KEY = "k" * 64


@dataclass
class World:
    """A store and a clock that only sleeping moves. `during` happens at each sleep."""

    store: ObjectStore
    now: float = 1_000_000.0
    during: Callable[[], object] = lambda: None
    said: list[str] = field(default_factory=list)

    def terms(self, owner: str, **changes: Any) -> Terms:
        terms = Terms(owner=owner, clock=lambda: self.now, sleep=self.sleep, is_dead=lambda name: name == "dead")
        return replace(terms, **changes)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.during()

    def hold(self, owner: str, answer: Callable[[], Any] = lambda: None, **changes: Any) -> Any:
        return hold(self.store, KEY, answer, self.terms(owner, **changes), self.said.append)

    def written(self) -> dict[str, Any]:
        return json.loads(self.store.read(lease_name(KEY)))

    def write(self, **fields: Any) -> None:
        self.store.put_bytes(lease_name(KEY), json.dumps(self.written() | fields).encode())


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(open_store("file:store", tmp_path), now=time.time())


def test_a_lease_is_there_while_it_is_held_and_leaves_nothing_once_the_work_is_done(world: World) -> None:
    with world.hold("a") as lease:
        assert world.written() == {"owner": "a", "generation": 1, "expires": world.now + 60}
        assert (lease.generation, lease.lost) == (1, False)
    assert world.store.size(lease_name(KEY)) is None
    assert world.said == []


def test_a_failed_holder_gives_it_back_and_the_next_one_counts_on(world: World) -> None:
    with pytest.raises(KeyError), world.hold("a"):
        raise KeyError
    assert world.written() == {"owner": "", "generation": 1, "expires": 0.0}
    before = world.now
    with world.hold("b") as lease:
        assert lease.generation == 2
    assert world.now == before, "nobody waits for a lease that was given back"


def test_a_second_runner_waits_for_an_expiry_and_a_margin_and_takes_over(world: World) -> None:
    with world.hold("a", ttl_seconds=30.0) as first:
        started = world.now
        with world.hold("b", ttl_seconds=30.0) as second:
            assert 30 + 5 <= world.now - started < 37
            assert (first.generation, second.generation) == (1, 2)
            with pytest.raises(LeaseLost, match="b took it over"):
                first.check()
            assert first.lost
            assert not second.lost
    waiting, over = [line for line in world.said if "clock" not in line][:2]
    assert waiting.startswith("a is making this: waiting for what it makes")
    assert over == "took over from a, who left it"


def test_a_renewed_lease_is_waited_for_as_long_as_it_takes_and_said_once(world: World) -> None:
    with world.hold("a", ttl_seconds=30.0) as first:
        started, answers = world.now, []
        world.during = first.check

        def answer() -> str | None:
            return "made by a" if world.now - started > 120 else None

        with world.hold("b", answer, ttl_seconds=30.0) as found:
            answers.append(found)
        assert answers == ["made by a"]
        assert not first.lost
    assert len(world.said) == 1


def test_a_lease_whose_writers_clock_is_wrong_is_taken_over_when_it_stands_still(world: World) -> None:
    with world.hold("a", ttl_seconds=30.0):
        world.write(expires=world.now + 1e6)
        started = world.now
        with world.hold("b", ttl_seconds=30.0):
            assert 35 <= world.now - started < 37


def test_a_dead_process_is_not_waited_for(world: World) -> None:
    with world.hold("dead"):
        before = world.now
        with world.hold("b") as lease:
            assert lease.generation == 2
            assert world.now == before


def test_what_was_made_while_nobody_looked_is_found_before_anything_is_made_again(world: World) -> None:
    answers = iter(["just made"])
    with world.hold("b", lambda: next(answers)) as found:
        assert found == "just made"
    assert world.store.size(lease_name(KEY)) is None


def test_an_error_while_asking_for_the_answer_keeps_no_lease(world: World) -> None:
    def tampered() -> None:
        raise StoreError("altered")

    with pytest.raises(StoreError, match="altered"), world.hold("a", tampered):
        pass
    assert world.written()["owner"] == ""


def test_of_many_racers_for_an_expired_lease_one_wins(world: World) -> None:
    with world.hold("dead"):
        leases = [Lease(world.store, KEY, world.terms(f"r{n}")) for n in range(8)]
        data, tag = world.store.read_tagged(lease_name(KEY))
        seen = Holding.from_json(data, "lease")
        won = race(leases, lambda lease: lease.try_to_take(seen, tag))
        assert [lease.generation for lease in won] == [2]
        won[0].release()


class Outage:
    """A store that can be away."""

    def __init__(self, store: ObjectStore) -> None:
        self._store, self.away = store, False

    def __getattr__(self, name: str) -> Any:
        if self.away:
            raise StoreError("no connection")
        return getattr(self._store, name)


def test_an_outage_is_survived_until_the_lease_expires(world: World) -> None:
    outage = Outage(world.store)
    world.store = outage
    with pytest.raises(LeaseLost, match="could not be renewed for 60 s"), world.hold("a") as lease:
        outage.away = True
        world.now += 50
        with pytest.raises(StoreError, match="no connection"):
            lease.check()
        assert not lease.lost
        outage.away = False
        lease.check()
        world.now += 59
        assert not lease.lost
        outage.away = True
        with pytest.raises(StoreError, match="no connection"):
            lease.check()
        world.now += 1
        assert lease.lost
        outage.away = False
        lease.check()


def test_a_holder_that_was_suspended_goes_on_when_nobody_took_its_lease(world: World) -> None:
    with world.hold("a") as lease:
        world.now += 10_000
        assert not lease.lost
        lease.check()
        assert world.written() == {"owner": "a", "generation": 1, "expires": world.now + 60}


def test_a_holder_whose_successor_is_gone_already_has_lost_all_the_same(world: World) -> None:
    with world.hold("a") as lease:
        world.now += 100
        with pytest.raises(KeyError), world.hold("b"):
            raise KeyError
        with pytest.raises(LeaseLost, match="somebody took it over"):
            lease.check()


def test_a_lease_that_was_lost_turns_any_error_into_one_line_that_says_so(world: World) -> None:
    with pytest.raises(LeaseLost, match=r"b took it over.*run the same command") as caught, world.hold("a") as lease:
        world.write(owner="b", generation=2)
        with pytest.raises(LeaseLost):
            lease.check()
        raise InterruptedError("stopped at step 7")
    assert isinstance(caught.value.__cause__, InterruptedError)
    assert world.written()["owner"] == "b", "a lost lease is not given back"


def test_a_deleted_lease_is_a_lost_one(world: World) -> None:
    with pytest.raises(LeaseLost, match="it was deleted"), world.hold("a") as lease:
        world.store.delete(lease_name(KEY))
        lease.check()


def test_the_background_renews_and_finds_out_when_the_lease_is_gone(tmp_path: Path) -> None:
    said: list[str] = []
    world = World(open_store("file:store", tmp_path))
    with hold(world.store, KEY, lambda: None, Terms(owner="a", ttl_seconds=3.0), said.append) as lease:
        first = world.written()["expires"]
        wait_for(lambda: world.written()["expires"] > first)
        assert not lease.lost
        world.write(owner="b", generation=2)
        wait_for(lambda: lease.lost)
        lease._thread.join(10)
    (line,) = said
    assert line.startswith("lease lost: ")
    assert line.endswith("took it over")


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def test_leaving_without_unwinding_gives_all_back_and_stops_all_writing(world: World) -> None:
    with pytest.raises(LeaseLost, match="it was given back"), world.hold("a") as lease:
        release_all()
        assert world.written()["owner"] == ""
        lease.check()


def test_a_wrong_clock_is_named(world: World) -> None:
    world.now += 3600
    with world.hold("a"):
        pass
    assert world.said == [
        "this machine's clock is 3600 s ahead of the store's: set it, or another machine may take this work over"
    ]


def save(checkpoints: CheckpointStore, folder: Path, step: int, text: str) -> None:
    path = folder / f"{step}-{text}"
    path.mkdir()
    (path / "state").write_text(text)
    checkpoints.save(step, path, {})


def test_a_holder_that_was_taken_over_can_neither_save_nor_prune(world: World, tmp_path: Path) -> None:
    with world.hold("a") as first:
        old = CheckpointStore(world.store, KEY, first)
        for step in (1, 2, 3):
            save(old, tmp_path, step, "old")
        world.now += 100
        with world.hold("b") as second:
            new = CheckpointStore(world.store, KEY, second)
            with pytest.raises(LeaseLost):
                save(old, tmp_path, 400, "too late")
            with pytest.raises(LeaseLost):
                old.prune(1)
            assert new.latest().step == 3
            save(new, tmp_path, 4, "new")
            assert new.prune(2) == [1, 2]


def test_a_late_manifest_of_an_older_holder_ranks_below_its_successors(world: World, tmp_path: Path) -> None:
    """Written between the check and the commit of a process that stood still in between."""
    with world.hold("dead") as first:
        old = CheckpointStore(world.store, KEY, first)
        save(old, tmp_path, 3, "shared")
        with world.hold("b") as second:
            new = CheckpointStore(world.store, KEY, second)
            save(new, tmp_path, 4, "successor")
            old._lease = None
            save(old, tmp_path, 400, "late")
            save(old, tmp_path, 4, "other bytes")
            latest = new.latest()
            assert new.restore(latest, tmp_path / "restored").joinpath("state").read_text() == "successor"
            assert new.prune(1) == [3, 4, 400]
            assert new.latest() == latest


def test_checkpoints_without_a_generation_still_read_and_rank_lowest(world: World, tmp_path: Path) -> None:
    unleased = CheckpointStore(world.store, KEY)
    save(unleased, tmp_path, 9, "before leases")
    assert list(world.store.list(unleased.prefix + "manifests/")) == [f"ckpt/{KEY}/manifests/9.json"]
    with world.hold("a") as lease:
        leased = CheckpointStore(world.store, KEY, lease)
        assert leased.latest().step == 9
        save(leased, tmp_path, 5, "after")
        assert unleased.latest().step == 5


def test_what_a_killed_attempt_uploaded_and_did_not_commit_is_swept_by_the_next(world: World, tmp_path: Path) -> None:
    checkpoints = CheckpointStore(world.store, KEY)
    assert checkpoints.begin_attempt({}) == 0
    save(checkpoints, tmp_path, 1, "whole")
    world.store.put_bytes(f"{checkpoints.prefix}blobs/{'0' * 64}", b"half a checkpoint")
    assert checkpoints.begin_attempt({}) == 1
    assert len(list(world.store.list(checkpoints.prefix + "blobs/"))) == 1
    assert checkpoints.latest().step == 1


def test_this_process_lives_and_a_reused_number_does_not() -> None:
    mine = this_process()
    owner = Owner(*mine.split("/")[:3], *map(int, mine.split("/")[3:5]), mine.split("/")[5])
    assert not is_dead(mine)
    assert this_process() != mine
    assert is_dead(str(owner._replace(started=owner.started + 1)))
    assert not is_dead(str(owner._replace(started=owner.started + 1, boot="another boot")))
    assert not is_dead(str(owner._replace(started=owner.started + 1, namespace="another container")))
    assert not is_dead("somebody")
    assert describe(mine) == f"process {os.getpid()} on {owner.host}"


def test_a_killed_process_is_dead_before_and_after_it_is_buried() -> None:
    code = "from artifacts.owners import this_process; print(this_process(), flush=True); input()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], cwd=PROJECT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    name = child.stdout.readline().strip()
    assert not is_dead(name)
    child.kill()
    deadline = time.monotonic() + 5
    while not is_dead(name) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert is_dead(name), "a zombie"
    child.communicate()
    assert is_dead(name)


def test_nobody_is_known_to_be_dead_where_the_system_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "_BOOT", Path("/nowhere"))
    name = this_process()
    gone = "/".join([*name.split("/")[:4], "1", "nonce"])
    assert not is_dead(gone)


def produce(making: Build) -> None:
    (making.output / "a").write_text("a")


STAGE = Stage("data", "t", "n", "steps.data", {"seed": 1})


def test_a_hit_asks_for_no_lease(workshop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    workshop.build(STAGE, produce)
    asked: list[str] = []
    store = workshop.repository.store

    class Watched:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return getattr(store, name)

    workshop.repository.store = Watched()
    assert workshop.build(STAGE, produce).cached
    assert set(asked) <= {"read", "size", "modified"}


def test_a_build_whose_lease_is_lost_commits_nothing(workshop: Any) -> None:
    key, _ = cache_key(workshop.repository, STAGE, workshop.root)

    def robbed(making: Build) -> None:
        produce(making)
        held = json.loads(workshop.repository.store.read(lease_name(key)))
        workshop.repository.store.put_bytes(
            lease_name(key), json.dumps(held | {"owner": "thief", "generation": 2}).encode()
        )

    with pytest.raises(LeaseLost, match="thief took it over"):
        workshop.build(STAGE, robbed)
    assert list(workshop.repository.store.list("records/")) == []
    assert list(workshop.repository.store.list("keys/")) == []


def test_two_runners_make_a_thing_once_and_both_have_it(workshop: Any) -> None:
    started, finish = threading.Event(), threading.Event()
    results: list[Any] = []

    def slow(making: Build) -> None:
        started.set()
        assert finish.wait(10)
        produce(making)

    quick = Terms(poll_seconds=0.02)
    first = threading.Thread(target=lambda: results.append(workshop.build(STAGE, slow)))
    first.start()
    assert started.wait(10)
    second = threading.Thread(target=lambda: results.append(workshop.build(STAGE, slow, terms=quick)))
    second.start()
    while not any("is making this" in line for line in workshop.reports):
        time.sleep(0.01)
    finish.set()
    first.join(10)
    second.join(10)
    assert {(each.record_digest, each.cached) for each in results} == {
        (results[0].record_digest, False),
        (results[0].record_digest, True),
    }
    assert workshop.made == ["data"]
    assert list(workshop.repository.store.list("ckpt/")) == []


HOLDER = """
import sys, time
from pathlib import Path
from artifacts.build import *
from artifacts.store import open_store
root = Path(sys.argv[1])
def produce(making):
    (root / "started").touch()
    time.sleep(60)
build(Repository(open_store("file:store", root)), Stage("data", "t", "n", "steps.data", {"seed": 1}), produce,
      root=root, run=RunInfo("f", "1", "u"), work_root=root / "work")
"""


def test_after_kill_9_on_this_machine_the_next_one_starts_at_once(workshop: Any) -> None:
    child = subprocess.Popen([sys.executable, "-c", HOLDER, str(workshop.root)], cwd=PROJECT)
    deadline = time.monotonic() + 30
    while not (workshop.root / "started").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    child.send_signal(signal.SIGKILL)
    child.wait(10)
    started = time.monotonic()
    built = workshop.build(STAGE, produce)
    assert time.monotonic() - started < 5
    (making,) = workshop.repository.provenances(built.record_digest)
    assert (making.run["interruptions"], making.run["generation"]) == (1, 2)
    assert any(f"took over from process {child.pid} on " in line for line in workshop.reports)
