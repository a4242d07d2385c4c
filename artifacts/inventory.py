"""What a store holds, and who needs what of it.

Needed is what releases and pins were made of, what recent runs made or found, and what somebody is working on: a stage
in progress notes its inputs before it reads them (`ckpt/<key>/attempts/`), and its checkpoints stay while it may go on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from artifacts.lease import Holding, lease_name
from artifacts.pins import list_pins
from artifacts.records import ArtifactError, Provenance, Record, Warn, read_json, silent
from artifacts.releases import list_releases
from artifacts.repository import READERS, Key, Repository, key_name, parallel, record_name, stem
from artifacts.store import MissingObject

# An expired lease counts as held for so long: clocks differ.
SKEW_SECONDS = 60.0

RECENT, IN_PROGRESS = "recent", "in progress"


@dataclass(frozen=True)
class Making:
    """A stage in progress, or given up: everything under one key's `ckpt/`.

    `needs` are the records that its latest attempt reads, None when that does not say. `touched` is when it was last
    seen alive, by the store's clock.
    """

    key: str
    objects: tuple[str, ...]
    is_held: bool
    is_committed: bool
    touched: float
    step: str | None
    needs: tuple[str, ...] | None


@dataclass(frozen=True)
class Inventory:
    """One look at a store. `needed` says for every needed record by whom (`nano@3`, `recent` ...).

    `unreadable` are records that are not what their names promise; nothing is known of what they need.
    """

    records: Mapping[str, Record]
    keys: tuple[Key, ...]
    unreadable: Mapping[str, str]
    makings: tuple[Making, ...]
    finished: Mapping[str, float]
    needed: Mapping[str, frozenset[str]]

    def is_alive(self, making: Making, young_since: float) -> bool:
        """Whether somebody works on it, or may go on with it: it was touched lately and is not finished."""
        return making.is_held or (not making.is_committed and making.touched >= young_since)


@dataclass
class Looker:
    """Takes inventories of one store; records, keys and provenance are read once. `warn` hears of altered keys."""

    repository: Repository
    warn: Warn = silent
    _records: dict[str, Record] = field(default_factory=dict, repr=False)
    _finished: dict[str, float] = field(default_factory=dict, repr=False)
    _keys: dict[str, Key] = field(default_factory=dict, repr=False)

    def look(self, now: float, recent_seconds: float) -> Inventory:
        """An inventory at Unix time `now`: what was made or found in the last `recent_seconds` is needed by itself.

        Raises ArtifactError when something that is needed cannot be read: then nobody knows what it needs.
        """
        young_since = now - recent_seconds
        # Listed first: a record that appears after its provenance was listed is simply not seen yet.
        made = self._latest_makings()
        keys = self._read_keys()
        makings = self._makings(now, frozenset(key.key for key in keys))
        records, unreadable = self._read_records()
        finished = self._finish_times(made, records, young_since)
        inventory = Inventory(records, keys, unreadable, makings, finished, {})
        labels = self._labels(inventory, young_since)
        for record in self._found_since(young_since, keys, _spread(labels, records, unreadable)):
            labels.setdefault(record, set()).add(RECENT)
        return replace(inventory, needed=_spread(labels, records, unreadable))

    def _read_keys(self) -> tuple[Key, ...]:
        names = [stem(name) for name in self.repository.store.list("keys/")]

        def read(key: str) -> None:
            try:
                found = self.repository.read_key(key)
            except ArtifactError as error:
                self.warn(str(error))
                return
            if found is not None:
                self._keys[key] = found

        parallel(read, [key for key in names if key not in self._keys], READERS)
        return tuple(self._keys[key] for key in names if key in self._keys)

    def _found_since(self, young_since: float, keys: Iterable[Key], needed: Container[str]) -> list[str]:
        """Records that nobody names and that a run found lately: it wrote their keys again (`Repository.use`)."""

        def is_young(key: Key) -> bool:
            return (self.repository.store.modified(key_name(key.key)) or 0.0) >= young_since

        doubtful = [key for key in keys if key.record not in needed]
        return [key.record for key, young in zip(doubtful, parallel(is_young, doubtful, READERS), strict=True) if young]

    def _read_records(self) -> tuple[dict[str, Record], dict[str, str]]:
        digests = [stem(name) for name in self.repository.store.list("records/")]
        unreadable: dict[str, str] = {}

        def read(digest: str) -> None:
            try:
                self._records[digest] = self.repository.read_record(digest)
            except ArtifactError as error:
                # One that is gone by now was swept by another collection.
                if self.repository.store.size(record_name(digest)) is not None:
                    unreadable[digest] = str(error)

        parallel(read, [digest for digest in digests if digest not in self._records], READERS)
        return {digest: self._records[digest] for digest in digests if digest in self._records}, unreadable

    def _latest_makings(self) -> dict[str, str]:
        """The newest provenance object of each record."""
        newest: dict[str, tuple[int, str]] = {}
        for name in self.repository.store.list("provenance/"):
            _, record, _ = name.split("/")
            number = stem(name)
            if number.isdecimal():
                newest[record] = max(newest.get(record, (0, "")), (int(number), name))
        return {record: name for record, (_, name) in newest.items()}

    def _finish_times(self, made: Mapping[str, str], records: Iterable[str], young_since: float) -> dict[str, float]:
        """When each record was last made by its provenance; if that is long ago, when it came into this store."""

        def read(record: str) -> None:
            name = made.get(record, record_name(record))
            if name not in self._finished:
                told = self._finish_time(name) if record in made else 0.0
                if told < young_since:
                    told = max(told, self.repository.store.modified(record_name(record)) or 0.0)
                self._finished[name] = told

        digests = list(records)
        parallel(read, digests, READERS)
        return {record: self._finished[made.get(record, record_name(record))] for record in digests}

    def _finish_time(self, name: str) -> float:
        try:
            told = Provenance.from_json(self.repository.store.read(name), name).run.get("finished")
            return datetime.fromisoformat(str(told)).timestamp()
        except (ArtifactError, MissingObject, ValueError):
            return 0.0

    def _makings(self, now: float, keys: frozenset[str]) -> tuple[Making, ...]:
        objects: dict[str, list[str]] = {}
        for name in self.repository.store.list("ckpt/"):
            objects.setdefault(name.split("/")[1], []).append(name)
        pairs = list(objects.items())
        return tuple(parallel(lambda pair: self._making(*pair, now, pair[0] in keys), pairs, READERS))

    def _making(self, key: str, names: list[str], now: float, is_committed: bool) -> Making:
        attempts = sorted(name for name in names if "/attempts/" in name)
        signs = [name for name in names if "/blobs/" not in name]
        touched = max((self.repository.store.modified(name) or 0.0 for name in signs), default=0.0)
        latest = self._attempt(max(attempts, key=_number)) if attempts else {}
        inputs = latest.get("inputs")
        return Making(
            key,
            tuple(names),
            lease_name(key) in names and self._is_held(key, now),
            is_committed,
            touched,
            latest.get("step"),
            tuple(inputs.values()) if isinstance(inputs, dict) else None,
        )

    def _attempt(self, name: str) -> dict[str, Any]:
        try:
            found = read_json(self.repository.store.read(name), name)
        except (ArtifactError, MissingObject):
            return {}
        return found if isinstance(found, dict) else {}

    def _is_held(self, key: str, now: float) -> bool:
        """A lease that cannot be read counts as held."""
        name = lease_name(key)
        try:
            lease = Holding.from_json(self.repository.store.read(name), name)
        except MissingObject:
            return False
        except ArtifactError:
            return True
        return bool(lease.owner) and now < lease.expires + SKEW_SECONDS

    def _labels(self, inventory: Inventory, young_since: float) -> dict[str, set[str]]:
        """The records that are needed for their own sake, with the reasons."""
        labels: dict[str, set[str]] = {}

        def need(record: str, why: str) -> None:
            labels.setdefault(record, set()).add(why)

        for release in list_releases(self.repository):
            need(release.record, f"{release.name}@{release.version}")
        for pin in list_pins(self.repository):
            need(pin.record, f"pin {pin.asked}")
        for record, finished in inventory.finished.items():
            if finished >= young_since:
                need(record, RECENT)
        for making in inventory.makings:
            if inventory.is_alive(making, young_since):
                # An attempt that does not say what it reads may read anything.
                for record in inventory.records if making.needs is None else making.needs:
                    need(record, IN_PROGRESS)
        return labels


def users_first(records: Mapping[str, Record]) -> list[str]:
    """Every record before those that it was made of."""
    inputs = {digest: set(record.inputs.values()) & records.keys() for digest, record in records.items()}
    users = Counter(each for named in inputs.values() for each in named)
    ready = sorted(digest for digest in records if not users[digest])
    ordered = []
    while ready:
        digest = ready.pop()
        ordered.append(digest)
        for each in sorted(inputs[digest]):
            users[each] -= 1
            if users[each] == 0:
                ready.append(each)
    return ordered


def _spread(
    labels: Mapping[str, set[str]], records: Mapping[str, Record], unreadable: Mapping[str, str]
) -> dict[str, frozenset[str]]:
    """The labels of records, and of all that they were made of."""
    needed: dict[str, set[str]] = {}
    for start, why in labels.items():
        waiting, seen = [start], set()
        while waiting:
            record = waiting.pop()
            if record in seen:
                continue
            seen.add(record)
            if record in unreadable:
                raise ArtifactError(
                    f"{', '.join(sorted(why))} needs a record that cannot be read: {unreadable[record]}"
                )
            if record in records:
                needed.setdefault(record, set()).update(why)
                waiting.extend(records[record].inputs.values())
    return {record: frozenset(why) for record, why in needed.items()}


def _number(name: str) -> int:
    number = stem(name)
    return int(number) if number.isdecimal() else 0
