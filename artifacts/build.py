"""Build an artifact once: look up its cache key, and only on a miss make it, store it and commit it.

The key is the sha256 of the canonical JSON of what decides the output: the stage, its code, the config it reads, and
the *content* of its inputs, so that an upstream edit that changes no byte stops there. Paths, hosts, devices and
times are not in it. What happened while making goes into the provenance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.canonical import digest, plain
from artifacts.checkpoints import CheckpointStore
from artifacts.costs import seconds_of_last_attempt
from artifacts.environment import environment, git_state
from artifacts.fingerprint import FIRST_PARTY, code_fingerprint
from artifacts.lease import Lease, Terms, hold
from artifacts.records import ArtifactError, Provenance, Record, Warn, key_payload, silent
from artifacts.repository import Repository
from artifacts.reuse import accept, reused
from artifacts.workspace import work_folder


@dataclass(frozen=True)
class Stage:
    """One thing to make: `module` holds the code, `inputs` are record digests by role, `config` all that it reads."""

    step: str
    kind: str
    name: str
    module: str
    config: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)

    def is_among(self, names: Container[str]) -> bool:
        """Whether one of the names is its step's, its artifact's, or its artifact's without the run's (`nano/`)."""
        return any(name in names for name in called(self.step, self.name))


def called(step: str, name: str) -> tuple[str, str, str]:
    """What a user may call a stage: by its step, its artifact, or its artifact without the run's name."""
    return step, name, name.partition("/")[2] or name


@dataclass(frozen=True)
class RunInfo:
    """Who asks for it; goes into the provenance and nowhere else."""

    flow: str
    run_id: str
    user: str


@dataclass(frozen=True)
class Build:
    """What a stage gets to work with. It fills `output`; `scratch` is its own, and gone afterwards.

    `inputs` are folders by role, verified copies. The stage may add to `environment` (devices) and to `cost`
    (device_seconds, usd, tokens_in ...), which the provenance keeps. `interruptions` counts the earlier attempts that
    did not finish. The stage stops when `lease` is lost.
    """

    stage: Stage
    key: str
    inputs: Mapping[str, Path]
    output: Path
    scratch: Path
    checkpoints: CheckpointStore
    lease: Lease
    interruptions: int
    environment: dict[str, Any] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Built:
    """What came out: the record that answers the key, whether it was there already, and the seconds it took."""

    record_digest: str
    key: str
    cached: bool
    seconds: float


Produce = Callable[[Build], Mapping[str, Any] | None]


def cache_key(repository: Repository, stage: Stage, root: Path) -> tuple[str, dict[str, Any]]:
    """A stage's cache key and the payload that it is the digest of. `root` holds the first-party packages.

    Raises CanonicalError naming the config value that cannot enter a key, ArtifactError for inputs that do not exist.
    """
    code = code_fingerprint(stage.module, FIRST_PARTY, root).fingerprint
    contents = {role: _content(repository, stage, role) for role in sorted(stage.inputs)}
    payload = key_payload(stage.step, code, stage.config, contents)
    return digest(payload), payload


def build(
    repository: Repository,
    stage: Stage,
    produce: Produce,
    *,
    root: Path,
    run: RunInfo,
    work_root: Path,
    report: Warn = silent,
    clock: Callable[[], float] = time.time,
    terms: Terms | None = None,
    reuse: frozenset[str] = frozenset(),
) -> Built:
    """The record of a stage, made by `produce` only when no whole record answers its cache key.

    Of several processes that want the same thing one makes it, under a lease (`terms`), and the others wait for what it
    makes. `produce` fills `Build.output` and returns metrics (plain data) for the provenance. Its exceptions pass
    through unchanged, and nothing becomes visible. A stage in `reuse` is not made: the nearest record that differs in
    code alone is accepted (artifacts.reuse). `clock` gives Unix seconds. Raises ArtifactError for an empty
    output, CanonicalError for metrics or config that are not plain data, StoreError when the store fails, LeaseLost
    when the work went to somebody else.
    """
    started = clock()
    key, payload = cache_key(repository, stage, root)

    def told(line: str) -> None:
        report(f"{stage.step}: {line}")

    found = repository.use(key)
    if found is None and stage.is_among(reuse):
        accepted = accept(repository, key, payload, stage.name, stage.module, root, asdict(run))
        told(f"reused {accepted.record[:12]}, made before {', '.join(accepted.modules)} changed")
        return Built(accepted.record, key, True, clock() - started)
    if found is None:
        with hold(repository.store, key, lambda: repository.find(key), terms or Terms(), told) as lease:
            if isinstance(lease, Lease):
                making = _Making(repository, stage, key, payload, lease, root, run, told)
                return Built(making.make(produce, work_root, clock), key, False, clock() - started)
            found = lease
    told(f"cached as {found.digest[:12]}")
    return Built(found.digest, key, True, clock() - started)


@dataclass(frozen=True)
class _Making:
    """One stage that is really made."""

    repository: Repository
    stage: Stage
    key: str
    payload: Mapping[str, Any]
    lease: Lease
    root: Path
    run: RunInfo
    report: Warn

    def make(self, produce: Produce, work_root: Path, clock: Callable[[], float]) -> str:
        """The record's digest."""
        started = clock()
        checkpoints = CheckpointStore(self.repository.store, self.key, self.lease)
        before = seconds_of_last_attempt(checkpoints)
        attempt = {"started": timestamp(started), "run": asdict(self.run), "generation": self.lease.generation}
        # What a collection of garbage must not take from under it (artifacts.collect).
        attempt |= {"step": self.stage.step, "name": self.stage.name, "inputs": dict(self.stage.inputs)}
        interruptions = checkpoints.begin_attempt(attempt | before)
        self.report("starts" if not interruptions else f"starts again after {interruptions} interruption(s)")
        with work_folder(work_root, self.stage.step) as folder:
            build = self._prepare(folder, checkpoints, interruptions)
            metrics = produce(build) or {}
            record = self._record(build)
            provenance = self._provenance(build, record, metrics, (started, clock()))
            self.lease.check()
            committed = self.repository.commit(self.key, self.payload, record, provenance, build.output)
        checkpoints.clear()
        self.report(f"made {committed[:12]}, {record.total_bytes:,} bytes, {clock() - started:.1f} s")
        return committed

    def _prepare(self, folder: Path, checkpoints: CheckpointStore, interruptions: int) -> Build:
        output, scratch = folder / "output", folder / "scratch"
        output.mkdir()
        scratch.mkdir()
        inputs = {
            role: self.repository.materialise(digest, folder / "inputs" / role)
            for role, digest in sorted(self.stage.inputs.items())
        }
        return Build(
            self.stage,
            self.key,
            inputs,
            output,
            scratch,
            checkpoints,
            self.lease,
            interruptions,
            environment(),
        )

    def _record(self, build: Build) -> Record:
        stage = self.stage
        files = self.repository.put_folder(build.output)
        if not files:
            raise ArtifactError(f"{stage.step} ended without writing any file: nothing committed")
        code = code_fingerprint(stage.module, FIRST_PARTY, self.root)
        return Record(stage.kind, stage.step, stage.name, tuple(files), stage.inputs, stage.config, code)

    def _provenance(
        self, build: Build, record: Record, metrics: Mapping[str, Any], span: tuple[float, float]
    ) -> Provenance:
        started, finished = span
        stood_in = reused(self.repository, self.stage.inputs.values(), self.root)
        return Provenance(
            record=record.digest,
            git=git_state(self.root),
            environment=build.environment,
            metrics=plain(metrics, f"metrics of {self.stage.step}"),
            cost={"wall_seconds": round(finished - started, 3)} | build.cost,
            run={
                **asdict(self.run),
                "started": timestamp(started),
                "finished": timestamp(finished),
                "interruptions": build.interruptions,
                "generation": self.lease.generation,
                **({"reused": stood_in} if stood_in else {}),
            },
        )


def timestamp(seconds: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _content(repository: Repository, stage: Stage, role: str) -> str:
    try:
        return repository.read_record(stage.inputs[role]).content_digest
    except ArtifactError as error:
        raise ArtifactError(f"{stage.step}: input {role!r}: {error}") from None
