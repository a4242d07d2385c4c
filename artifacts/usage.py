"""What takes the room in a store: by stage and kind, in progress, and for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from artifacts.inventory import Inventory
from artifacts.repository import READERS, Repository, blob_name, parallel

Group = tuple[str, str]  # step, kind


@dataclass(frozen=True)
class Usage:
    """The artifacts of one step and kind. Equal files count once; `shared` bytes are in other groups' artifacts too."""

    step: str
    kind: str
    records: int
    bytes: int
    shared: int


@dataclass(frozen=True)
class Room:
    """All of a store. `blobs` is the size of every blob that a record names, each once; `unnamed` of the others.

    `in_progress` maps the keys of stages in progress to (step, bytes of their checkpoints).
    """

    usages: tuple[Usage, ...]
    blobs: int
    unnamed: int
    in_progress: Mapping[str, tuple[str | None, int]]

    @property
    def total(self) -> int:
        return self.blobs + self.unnamed + sum(size for _, size in self.in_progress.values())


def room(repository: Repository, inventory: Inventory) -> Room:
    """Count what an inventory found. Sizes come from the records; only what none names is looked at."""
    store = repository.store
    groups: dict[str, set[Group]] = {}
    sizes: dict[str, int] = {}
    counts: dict[Group, int] = {}
    for record in inventory.records.values():
        group = (record.step, record.kind)
        counts[group] = counts.get(group, 0) + 1
        for entry in record.files:
            groups.setdefault(entry.sha256, set()).add(group)
            sizes[entry.sha256] = entry.bytes
    named = {blob_name(sha256) for sha256 in sizes}
    unnamed = [name for name in store.list("objects/") if name not in named]
    checkpoints = [(making, name) for making in inventory.makings for name in making.objects]
    measured = parallel(lambda pair: store.size(pair[1]) or 0, checkpoints, READERS)
    in_progress = {making.key: (making.step, 0) for making in inventory.makings}
    for (making, _), size in zip(checkpoints, measured, strict=True):
        in_progress[making.key] = (making.step, in_progress[making.key][1] + size)
    return Room(
        tuple(_usage(group, counts[group], groups, sizes) for group in sorted(counts)),
        sum(sizes.values()),
        sum(parallel(lambda name: store.size(name) or 0, unnamed, READERS)),
        in_progress,
    )


def _usage(group: Group, records: int, groups: Mapping[str, set[Group]], sizes: Mapping[str, int]) -> Usage:
    own = [sha256 for sha256, users in groups.items() if group in users]
    shared = sum(sizes[sha256] for sha256 in own if len(groups[sha256]) > 1)
    return Usage(*group, records, sum(sizes[sha256] for sha256 in own), shared)
