"""What making an artifact cost, attempts that did not finish included, and the sum over all that a record was made of.

The provenance of each making holds amounts under `cost`; the names in `AMOUNTS` add up. An attempt that is killed
cannot say how long it lived, so the next one looks: from the attempt's start to the last object that it left under the
stage's key, by the store's clock. That is a lower bound, short by at most the time between two checkpoints.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from artifacts.checkpoints import CheckpointStore
from artifacts.reach import reach
from artifacts.records import ArtifactError, read_json
from artifacts.repository import Repository, numbered

AMOUNTS = (
    "wall_seconds",
    "interrupted_seconds",
    "device_seconds",
    "tokens_trained",
    "requests",
    "tokens_in",
    "tokens_out",
    "usd",
)
_BILLED = ("device_seconds", "requests")
_BEFORE = "seconds_before"


@dataclass(frozen=True)
class StageCost:
    """What one record cost at its latest making; `amounts` holds those of `AMOUNTS` that are known.

    `makings` counts all makings of the record, `interruptions` the attempts before the latest that did not finish.
    """

    step: str
    name: str
    record: str
    started: str
    interruptions: int
    makings: int
    amounts: Mapping[str, float]

    @property
    def is_unpriced(self) -> bool:
        """Whether it used what is paid for, and nobody said at what price."""
        return "usd" not in self.amounts and any(self.amounts.get(name) for name in _BILLED)


def seconds_of_last_attempt(checkpoints: CheckpointStore) -> dict[str, float]:
    """How long the attempt before lived, as details for the attempt that starts now; empty when it is the first."""
    store = checkpoints.store
    attempts = numbered(store, f"{checkpoints.prefix}attempts/")
    if not attempts:
        return {}
    started = store.modified(attempts[max(attempts)])
    left = (store.modified(name) for part in ("manifests/", "blobs/") for name in store.list(checkpoints.prefix + part))
    signs = [moment for moment in left if moment is not None]
    if started is None:
        return {}
    return {_BEFORE: round(max([started, *signs]) - started, 3)}


def interruption_cost(checkpoints: CheckpointStore) -> dict[str, float]:
    """`interrupted_seconds` of all attempts before the one that runs now; empty when there was none."""
    store = checkpoints.store
    attempts = [
        read_json(store.read(name), name) for name in numbered(store, f"{checkpoints.prefix}attempts/").values()
    ]
    if len(attempts) < 2:
        return {}
    return {"interrupted_seconds": round(sum(float(each.get(_BEFORE, 0.0)) for each in attempts), 3)}


def device_cost(seconds: float, devices: int, usd_per_device_hour: float | None) -> dict[str, float]:
    """What holding `devices` for `seconds` costs: `device_seconds`, and `usd` when the price is known."""
    cost = {"devices": devices, "device_seconds": round(seconds * devices, 3)}
    if usd_per_device_hour is None:
        return cost
    return cost | {"usd": round(cost["device_seconds"] / 3_600 * usd_per_device_hour, 6)}


def stage_costs(repository: Repository, record_digest: str) -> list[StageCost]:
    """The cost of each record that a record was made from, itself included, in the order in which they were started.

    Raises ArtifactError for a record or a provenance that is missing or altered: a sum with holes would be a lie.
    """
    reached = reach(repository, record_digest)
    if reached.faults:
        raise ArtifactError(reached.faults[0].message)
    found = []
    for digest, record in reversed(list(reached.records.items())):
        makings = repository.provenances(digest)
        cost: Mapping[str, Any] = makings[-1].cost if makings else {}
        run: Mapping[str, Any] = makings[-1].run if makings else {}
        amounts = {name: cost[name] for name in AMOUNTS if isinstance(cost.get(name), (int, float))}
        found.append(
            StageCost(
                record.step,
                record.name,
                digest,
                str(run.get("started", "")),
                int(run.get("interruptions", 0)),
                len(makings),
                amounts,
            )
        )
    return sorted(found, key=lambda each: each.started)  # of the same second, what is further down comes first


def total(costs: Iterable[StageCost]) -> dict[str, float]:
    """The sum of each amount that any of them knows."""
    sums: dict[str, float] = {}
    for cost in costs:
        for name, amount in cost.amounts.items():
            sums[name] = sums.get(name, 0) + amount
    return {name: round(sums[name], 6) for name in AMOUNTS if name in sums}
