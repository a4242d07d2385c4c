"""Leases on cache keys: of all who want to make one thing, one works, the others wait and take what it makes.

    ckpt/<key>/lease.json   {"owner", "generation", "expires"}

Whoever creates the object holds the lease; whoever replaces one that is free, expired or of a dead process holds the
next generation of it. The holder renews it in the background. Every write goes through the store's compare-and-swap, so
of any number of racers one wins, and a holder that was taken over finds out at its next write: before each commit it
renews, and when that fails it commits nothing. A holder that slept through its own expiry cannot harm its successor;
where it has none, it finds its lease untouched, and goes on.

Clocks of different machines need to agree only to a part of the time to live. Where they do not, a living holder may be
taken over: then it stops, and its work goes on elsewhere from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypeVar

from artifacts import owners
from artifacts.canonical import canonical_json
from artifacts.records import ArtifactError, Warn, check_fields, silent
from artifacts.store import MissingObject, ObjectStore, StoreError

LEASE_FIELDS: Mapping[str, type] = {"owner": str, "generation": int, "expires": float}

_BEATS = 3  # renewals in one time to live
_HASTE = 4  # so many times as often after one that failed
_SKEW_SHARE = 1 / 6  # of the time to live: what clocks may differ by before a living holder looks expired

_Answer = TypeVar("_Answer")

_held: set[Lease] = set()


class LeaseLost(RuntimeError):
    """The work belongs to somebody else now, or may: nothing may be written any more. What was saved goes on there."""


@dataclass(frozen=True)
class Terms:
    """How leases are held here. `clock` gives Unix seconds; `sleep` waits, and may raise to give up waiting."""

    owner: str = field(default_factory=owners.this_process)
    ttl_seconds: float = 60.0
    poll_seconds: float = 1.0
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    is_dead: Callable[[str], bool] = owners.is_dead


@dataclass(frozen=True)
class Holding:
    """What the store says of a lease. A free one has no owner and expired long ago."""

    owner: str
    generation: int
    expires: float

    def to_json(self) -> bytes:
        return canonical_json(asdict(self))

    @classmethod
    def from_json(cls, data: bytes, where: str) -> Holding:
        """Read it strictly. Raises ArtifactError."""
        return cls(**check_fields(data, where, LEASE_FIELDS))


class Lease:
    """A lease that this process holds. Any thread may call its methods; made by `hold`.

    `generation` counts the holders that this key has had: commits carry it.
    """

    def __init__(self, store: ObjectStore, key: str, terms: Terms, report: Warn = silent) -> None:
        self.generation = 0
        self._store, self._name, self._terms, self._report = store, lease_name(key), terms, report
        self._lock = threading.Lock()
        self._expires, self._reason = 0.0, ""
        self._unanswered = False  # since a renewal was begun
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._keep_alive, name="lease", daemon=True)

    @property
    def lost(self) -> bool:
        """Whether to stop without writing: somebody took it over, or the store has not answered until it expired.

        Never waits for the store. A process that was suspended past its expiry is not lost before it has asked.
        """
        if not self._reason and self._unanswered and self._terms.clock() >= self._expires:
            self._reason = f"it could not be renewed for {self._terms.ttl_seconds:g} s"
        return bool(self._reason)

    @property
    def reason(self) -> str:
        """Why it was lost."""
        return self._reason

    def check(self) -> None:
        """Before a commit: renew, so that the whole time to live lies before it.

        Raises LeaseLost when the lease is not ours any more, StoreError when the store does not say.
        """
        with self._lock:
            self._renew()
        if self.lost or self._ended.is_set():
            raise LeaseLost(self.loss())

    def loss(self) -> str:
        """One line for the user."""
        why = self._reason or "it was given back"
        return f"lost the lease on this work, {why}: stopped before writing; run the same command to continue"

    def try_to_take(self, seen: Holding | None, tag: str) -> bool:
        """Take a lease that nobody has had (`seen` None) or that was seen under `tag`; False when somebody was faster.

        Raises StoreError.
        """
        expires = self._terms.clock() + self._terms.ttl_seconds
        mine = Holding(self._terms.owner, 1 if seen is None else seen.generation + 1, expires)
        if seen is None:
            won = self._store.put_if_absent(self._name, mine.to_json())
        else:
            won = self._store.put_if_tag(self._name, mine.to_json(), tag)
        if won:
            self.generation, self._expires = mine.generation, expires
            _held.add(self)
            self._thread.start()
            self._compare_clocks()
        return won

    def _compare_clocks(self) -> None:
        """Say so when others, by their clocks, may take this lease for expired."""
        written, now = None, self._terms.clock()
        with contextlib.suppress(StoreError):
            written = self._store.modified(self._name)
        if written is not None and abs(now - written) > self._terms.ttl_seconds * _SKEW_SHARE:
            self._report(
                f"this machine's clock is {abs(now - written):.0f} s {'ahead of' if now > written else 'behind'} the "
                "store's: set it, or another machine may take this work over"
            )

    def release(self, *, done: bool = False) -> None:
        """Give it back, so that nobody has to wait for its end; `done`: with it goes all memory of it."""
        self._ended.set()
        _held.discard(self)
        with self._lock:
            if self._reason:
                return
            try:
                data, tag = self._store.read_tagged(self._name)
                if self._is_ours(data) and done:
                    self._store.delete(self._name)
                elif self._is_ours(data):
                    self._store.put_if_tag(self._name, Holding("", self.generation, 0.0).to_json(), tag)
            except MissingObject:
                pass
            except StoreError as error:
                self._report(f"the lease {self._name} was not given back, it will expire: {error}")

    def _renew(self) -> None:
        if self.lost or self._ended.is_set():
            return
        self._unanswered = True
        expires = self._terms.clock() + self._terms.ttl_seconds
        try:
            data, tag = self._store.read_tagged(self._name)
        except MissingObject:
            self._reason = "it was deleted"
            return
        mine = Holding(self._terms.owner, self.generation, expires).to_json()
        if not self._is_ours(data):
            taker = Holding.from_json(data, self._name).owner
            self._reason = f"{owners.describe(taker) if taker else 'somebody'} took it over"
        elif self._store.put_if_tag(self._name, mine, tag):
            self._expires, self._unanswered = expires, False
        else:
            self._reason = "somebody took it over"

    def _is_ours(self, data: bytes) -> bool:
        found = Holding.from_json(data, self._name)
        return (found.owner, found.generation) == (self._terms.owner, self.generation)

    def _keep_alive(self) -> None:
        """Renew until the end. A store that is away is asked again, sooner; `lost` knows when it is too late."""
        beat = pause = self._terms.ttl_seconds / _BEATS
        while not self._ended.wait(pause) and not self.lost:
            pause = beat
            try:
                with self._lock:
                    self._renew()
            except (StoreError, ArtifactError):
                pause = beat / _HASTE
        if self.lost:
            self._report(f"lease lost: {self._reason}")


@contextlib.contextmanager
def hold(
    store: ObjectStore,
    key: str,
    answer: Callable[[], _Answer | None],
    terms: Terms,
    report: Warn = silent,
) -> Iterator[Lease | _Answer]:
    """Hold the lease on a key, or have what its holder made: the body gets a Lease, or the answer.

    Waits while somebody else holds it, until the answer is there or the lease is free, and says so once. At the end,
    whatever the end, the lease is given back. Raises LeaseLost instead of what the body raises once it is lost,
    StoreError when the store fails before anybody holds it.
    """
    lease = Lease(store, key, terms, report)
    found = _wait(store, key, answer, lease, terms, report)
    if found is not None:
        yield found
        return
    done = False
    try:
        found = answer()  # the holder before may have committed it after we asked
        yield lease if found is None else found
        done = True
    except Exception as error:
        if lease.lost and not isinstance(error, LeaseLost):
            raise LeaseLost(lease.loss()) from error
        raise
    finally:
        lease.release(done=done)


def lease_name(key: str) -> str:
    """Where the store keeps the lease on a cache key."""
    return f"ckpt/{key}/lease.json"


def release_all() -> None:
    """Give back every lease of this process: for the moment before it ends without unwinding."""
    for lease in list(_held):
        lease.release()


def _wait(
    store: ObjectStore,
    key: str,
    answer: Callable[[], _Answer | None],
    lease: Lease,
    terms: Terms,
    report: Warn,
) -> _Answer | None:
    """Take the lease (None), or return the answer that came before it was free."""
    name, told, unchanged = lease_name(key), "", (terms.clock(), "")
    while True:
        try:
            data, tag = store.read_tagged(name)
            seen = Holding.from_json(data, name)
        except MissingObject:
            seen, tag = None, ""
        if unchanged[1] != tag:
            unchanged = (terms.clock(), tag)
        if (seen is None or _is_free(seen, unchanged[0], terms)) and lease.try_to_take(seen, tag):
            if seen is not None and seen.owner:
                report(f"took over from {owners.describe(seen.owner)}, who left it")
            return None
        if seen is not None and told != seen.owner:
            told = seen.owner
            report(_waiting(seen, terms))
        terms.sleep(terms.poll_seconds)
        found = answer()
        if found is not None:
            return found


def _is_free(seen: Holding, unchanged_since: float, terms: Terms) -> bool:
    """Given back, expired by a margin, not renewed for a whole time to live by our own clock, or its process is dead.

    The third holds however wrong the holder's clock is.
    """
    now = terms.clock()
    return (
        not seen.owner
        or now >= seen.expires + terms.ttl_seconds * _SKEW_SHARE
        or now >= unchanged_since + terms.ttl_seconds * (1 + _SKEW_SHARE)
        or terms.is_dead(seen.owner)
    )


def _waiting(seen: Holding, terms: Terms) -> str:
    left = max(0.0, seen.expires - terms.clock())
    return (
        f"{owners.describe(seen.owner)} is making this: waiting for what it makes, and taking over "
        f"if it does not renew its lease ({left:.0f} s left)"
    )
