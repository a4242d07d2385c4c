"""Leases on each kind of store: its own compare-and-swap decides."""

from __future__ import annotations

import json

import pytest

from artifacts.lease import Holding, Lease, LeaseLost, Terms, hold, lease_name
from artifacts.store import ObjectStore
from tests.racing import race

KEY = "k" * 64


def test_a_lease_is_taken_renewed_given_back_and_taken_again(store: ObjectStore) -> None:
    with pytest.raises(KeyError), hold(store, KEY, lambda: None, Terms(owner="a")) as lease:
        first = json.loads(store.read(lease_name(KEY)))
        lease.check()
        assert json.loads(store.read(lease_name(KEY)))["expires"] > first["expires"]
        raise KeyError
    with hold(store, KEY, lambda: None, Terms(owner="b")) as lease:
        assert lease.generation == 2
    assert store.size(lease_name(KEY)) is None


@pytest.mark.parametrize("expired", [False, True])
def test_of_many_racers_one_holds_it_and_the_one_before_can_write_no_more(store: ObjectStore, expired: bool) -> None:
    before = Lease(store, KEY, Terms(owner="before"))
    seen, tag = None, ""
    if expired:
        assert before.try_to_take(None, "")
        data, tag = store.read_tagged(lease_name(KEY))
        seen = Holding.from_json(data, "lease")
    racers = [Lease(store, KEY, Terms(owner=f"racer {number}")) for number in range(8)]
    (holder,) = race(racers, lambda lease: lease.try_to_take(seen, tag))
    holder.check()
    if expired:
        with pytest.raises(LeaseLost, match=r"racer \d took it over"):
            before.check()
    holder.release(done=True)
