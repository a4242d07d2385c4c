"""One run of the pipeline, as every stage sees it: what to make, where it is kept, how to talk and to be stopped."""

from __future__ import annotations

import getpass
import os
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from artifacts.build import Build, Produce, RunInfo, Stage, build
from artifacts.costs import device_cost, interruption_cost
from artifacts.lease import Terms
from artifacts.repository import Repository
from artifacts.store import StoreSettings, open_store
from nanocode.config import Config
from nanocode.stopping import Interrupted
from steps.signals import hush, stop_requested

if TYPE_CHECKING:
    from nanocode.training.stage import Running

ROOT = Path(__file__).resolve().parents[2]

_LOOK_SECONDS = 0.1


def say(line: str) -> None:
    """Print a line at once: a stage's output is watched live. A stage goes on when nobody reads it any more."""
    try:
        print(line, flush=True)  # noqa: T201
    except BrokenPipeError:
        hush()


@dataclass(frozen=True)
class Run:
    """One run of the pipeline: the config, where artifacts live, and how to talk and to be stopped."""

    config: Config
    repository: Repository
    info: RunInfo
    say: Callable[[str], None] = say
    stop_requested: Callable[[], bool] = stop_requested
    root: Path = ROOT
    work: Path = field(default=ROOT / ".nanocode" / "work")
    reuse: frozenset[str] = frozenset()

    @classmethod
    def open(cls, config: Config, *, flow: str, run_id: str, reuse: frozenset[str] = frozenset()) -> Self:
        """Open the store: NANOCODE_STORE, else `[store] url`, relative paths counted from the project.

        The stages in `reuse`, by step or by artifact, are not made again for an edit of their code alone.
        """
        store_config = config.store
        settings = StoreSettings.chosen(
            os.environ, ROOT, cache_bytes=store_config.cache_bytes, unsafe_leases=store_config.unsafe_leases
        )
        store = open_store(os.environ.get("NANOCODE_STORE") or store_config.url, ROOT, settings, say)
        return cls(config, Repository(store, warn=say), RunInfo(flow, run_id, _user()), reuse=reuse)

    def make(self, stage: Stage, produce: Produce) -> str:
        """The record digest of `stage`, from the cache or made now; memory and the devices' time go into its cost."""

        def measured(making: Build) -> Mapping[str, Any] | None:
            started = time.monotonic()
            metrics = produce(making)
            making.cost.update(self._held(making, time.monotonic() - started), peak_rss_bytes=peak_rss_bytes())
            return metrics

        return build(
            self.repository,
            stage,
            measured,
            root=self.root,
            run=self.info,
            work_root=self.work,
            report=self.say,
            reuse=self.reuse,
            terms=Terms(ttl_seconds=self.config.compute.lease_seconds, sleep=self._wait),
        ).record_digest

    def _wait(self, seconds: float) -> None:
        """Sleep while another process makes what is wanted here. Raises Interrupted when asked to stop."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.stop_requested():
                raise Interrupted("stopped while another process made this; run the same command to continue")
            time.sleep(_LOOK_SECONDS)

    def stop_asked(self, making: Build) -> Callable[[], bool]:
        """What a stage asks between two pieces of work: whether the process should stop, or its lease was lost."""
        return lambda: self.stop_requested() or making.lease.lost

    def _held(self, making: Build, seconds: float) -> dict[str, float]:
        """What earlier attempts took, and the devices that were held for them and for the last one."""
        lost = interruption_cost(making.checkpoints)
        if "devices" not in making.cost:
            return lost
        held = seconds + lost.get("interrupted_seconds", 0.0)
        return lost | device_cost(held, making.cost["devices"], self.config.compute.usd_per_device_hour)

    def name(self, what: str) -> str:
        return f"{self.config.name}/{what}"

    def running(self, making: Build) -> Running:
        """How training is carried out: checkpoints under the stage's key, this run's voice and stop signal."""
        import jax

        from nanocode.training.hardware import keep_compiled
        from nanocode.training.sharding import build_mesh, layout
        from nanocode.training.stage import Running

        compute, local = self.config.compute, self.root / ".nanocode"
        if compute.compilation_cache:
            keep_compiled(local / "xla")
        making.environment["devices"] = sorted({device.device_kind for device in jax.devices()})
        making.cost["devices"] = jax.device_count()
        return Running(
            self.say,
            making.checkpoints,
            compute,
            self.stop_asked(making),
            build_mesh(layout(compute, jax.device_count()), jax.devices()),
            local / "logs" / f"{making.stage.name}-{making.key[:12]}",
        )


def read_names(text: str) -> frozenset[str]:
    """The names in `pretrain, evaluation-base`."""
    return frozenset(part.strip() for part in text.split(",") if part.strip())


def peak_rss_bytes() -> int:
    """Peak resident memory of this process and of its largest finished child."""
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + children) * 1024


def require_sandbox() -> None:
    """Raise SandboxUnavailable now: a tool would report it to the model, and the report would end up in the data."""
    from nanocode.agent.sandbox import Sandbox

    Sandbox().check()


def _user() -> str:
    return os.environ.get("METAFLOW_USER") or getpass.getuser()


def roles(prefix: str, named: Mapping[str, str]) -> dict[str, str]:
    """Several inputs of one kind under one role each."""
    return {f"{prefix}.{name}": digest for name, digest in sorted(named.items())}


def by_name(making: Build, prefix: str) -> dict[str, Path]:
    """The inverse of `roles`, as folders."""
    start = f"{prefix}."
    return {role.removeprefix(start): folder for role, folder in making.inputs.items() if role.startswith(start)}
