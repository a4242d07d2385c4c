"""Build an artifact once: look up its cache key, and only on a miss make it, store it and commit it.

The key is the sha256 of the canonical JSON of what decides the output: the stage, its code, the config it reads, and
the *content* of its inputs, so that an upstream edit that changes no byte stops there. Paths, hosts, devices and
times are not in it. What happened while making goes into the provenance.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from artifacts.canonical import digest, plain
from artifacts.checkpoints import CheckpointStore
from artifacts.costs import seconds_of_last_attempt
from artifacts.environment import environment, git_state
from artifacts.fingerprint import FIRST_PARTY, code_fingerprint
from artifacts.records import ArtifactError, Provenance, Record, Warn, key_payload, silent
from artifacts.repository import Repository
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
    did not finish.
    """

    stage: Stage
    key: str
    inputs: Mapping[str, Path]
    output: Path
    scratch: Path
    checkpoints: CheckpointStore
    interruptions: int
    report: Warn
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
) -> Built:
    """The record of a stage, made by `produce` only when no whole record answers its cache key.

    `produce` fills `Build.output` and returns metrics (plain data) for the provenance. Its exceptions pass through
    unchanged, and nothing becomes visible. `clock` gives Unix seconds. Raises ArtifactError for an empty output,
    CanonicalError for metrics or config that are not plain data, StoreError when the store fails.
    """
    started = clock()
    key, payload = cache_key(repository, stage, root)
    found = repository.find(key)
    if found is not None:
        report(f"{stage.step}: cached as {found.digest[:12]}")
        return Built(found.digest, key, True, clock() - started)
    checkpoints = CheckpointStore(repository.store, key)
    before = seconds_of_last_attempt(checkpoints)
    interruptions = checkpoints.begin_attempt({"started": timestamp(started), "run": asdict(run)} | before)
    report(f"{stage.step}: {'starts' if not interruptions else f'starts again after {interruptions} interruption(s)'}")
    with work_folder(work_root, stage.step) as folder:
        making = _prepare(repository, stage, key, folder, checkpoints, interruptions, report)
        metrics = produce(making) or {}
        record = _record(repository, making, root)
        provenance = _provenance(making, record, metrics, root, run, (started, clock()))
        committed = repository.commit(key, payload, record, provenance)
    checkpoints.clear()
    report(f"{stage.step}: made {committed[:12]}, {record.total_bytes:,} bytes, {clock() - started:.1f} s")
    return Built(committed, key, False, clock() - started)


def timestamp(seconds: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _content(repository: Repository, stage: Stage, role: str) -> str:
    try:
        return repository.read_record(stage.inputs[role]).content_digest
    except ArtifactError as error:
        raise ArtifactError(f"{stage.step}: input {role!r}: {error}") from None


def _prepare(
    repository: Repository,
    stage: Stage,
    key: str,
    folder: Path,
    checkpoints: CheckpointStore,
    interruptions: int,
    report: Warn,
) -> Build:
    output, scratch = folder / "output", folder / "scratch"
    output.mkdir()
    scratch.mkdir()
    inputs = {
        role: repository.materialise(digest, folder / "inputs" / role) for role, digest in sorted(stage.inputs.items())
    }
    return Build(stage, key, inputs, output, scratch, checkpoints, interruptions, report, environment())


def _record(repository: Repository, making: Build, root: Path) -> Record:
    stage = making.stage
    files = repository.put_folder(making.output)
    if not files:
        raise ArtifactError(f"{stage.step} ended without writing any file: nothing committed")
    code = code_fingerprint(stage.module, FIRST_PARTY, root)
    return Record(stage.kind, stage.step, stage.name, tuple(files), stage.inputs, stage.config, code)


def _provenance(
    making: Build, record: Record, metrics: Mapping[str, Any], root: Path, run: RunInfo, span: tuple[float, float]
) -> Provenance:
    started, finished = span
    times = {"started": timestamp(started), "finished": timestamp(finished), "interruptions": making.interruptions}
    return Provenance(
        record=record.digest,
        git=git_state(root),
        environment=making.environment,
        metrics=plain(metrics, f"metrics of {making.stage.step}"),
        cost={"wall_seconds": round(finished - started, 3)} | making.cost,
        run=asdict(run) | times,
    )
