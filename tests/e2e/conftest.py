"""Whole pipelines at the smallest size, through the real command line, each in a store of its own or the shared one."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FLOW = ROOT / "flows" / "full_pipeline.py"
CONFIG = Path(__file__).with_name("tiny.toml")
LONGEST_SECONDS = 900


@dataclass(frozen=True)
class Finished:
    """A command that ended: both streams in `output`."""

    status: int
    output: str

    def stages(self, word: str) -> list[str]:
        """The stages of which the output says `word` ("made", "cached"), in order of appearance."""
        lines = (line.partition(")] ")[2] or line for line in self.output.splitlines())
        return [line.partition(":")[0] for line in lines if line.partition(": ")[2].startswith(word)]


@dataclass
class Pipeline:
    """The flow with one store and one place for Metaflow's files."""

    store: Path
    home: Path
    root: Path = ROOT

    def environment(self, **extra: str) -> dict[str, str]:
        own = {
            "NANOCODE_STORE": f"file:{self.store}",
            "METAFLOW_DATASTORE_SYSROOT_LOCAL": str(self.home),
            "METAFLOW_USER": "tester",
        }
        return {**os.environ, **own, **extra}

    def start(self, command: Sequence[object], log: Path, **extra: str) -> subprocess.Popen[bytes]:
        """Start a command in a process group of its own, both streams into `log`."""
        with log.open("wb") as stream:
            return subprocess.Popen(
                [str(part) for part in command],
                cwd=self.home,
                env=self.environment(**extra),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                process_group=0,
            )

    def finish(self, command: Sequence[object], **extra: str) -> Finished:
        log = self.home / f"log-{time.monotonic_ns()}.txt"
        child = self.start(command, log, **extra)
        return Finished(child.wait(LONGEST_SECONDS), log.read_text(encoding="utf-8", errors="replace"))

    def flow(self, *overrides: str, config: Path = CONFIG) -> list[object]:
        """The command that runs the flow."""
        command: list[object] = [sys.executable, FLOW, "--config", "config", config, "run"]
        return [*command, "--override", "; ".join(overrides)] if overrides else command

    def run(self, *overrides: str, config: Path = CONFIG) -> Finished:
        return self.finish(self.flow(*overrides, config=config))

    def nanocode(self, *arguments: object) -> Finished:
        return self.finish([sys.executable, "-m", "nanocode.cli", *arguments], PYTHONPATH=str(ROOT))

    def releases(self) -> list[dict[str, Any]]:
        return json.loads(self.nanocode("models", "--json").output)

    def digest(self) -> str:
        """The record of the newest release."""
        return self.releases()[-1]["digest"]

    def record_digest(self, step: str, name: str) -> str:
        """The digest of the one record of that stage and name."""
        found = {path.stem: json.loads(path.read_bytes()) for path in (self.store / "records").glob("*.json")}
        (digest,) = [key for key, each in found.items() if (each["step"], each["name"]) == (step, name)]
        return digest

    def record(self, step: str, name: str) -> Mapping[str, Any]:
        return self.read_record(self.record_digest(step, name))

    def read_record(self, digest: str) -> Mapping[str, Any]:
        return json.loads((self.store / "records" / f"{digest}.json").read_bytes())

    def made(self, step: str) -> bool:
        """Whether the store holds a record of that stage."""
        return any(json.loads(path.read_bytes())["step"] == step for path in (self.store / "records").glob("*.json"))

    def curve(self, name: str) -> list[dict[str, Any]]:
        """The training curve that the latest making of the one record of that name saw."""
        digest = self.record_digest(name.partition("/")[2].replace("base", "pretrain"), name)
        path = max((self.store / "provenance" / digest).glob("*.json"), key=lambda path: int(path.stem))
        return json.loads(path.read_bytes())["metrics"]["curve"]

    def weights(self, release: str) -> str:
        """The sha256 of a release's weights."""
        return {file["path"]: file["sha256"] for file in self.read_record(release)["files"]}["model.safetensors"]

    def checkpoints(self, holding: str) -> list[Path]:
        """The manifests of checkpoints in progress with a file whose name holds a word."""
        return [path for path in self.store.glob("ckpt/*/manifests/*.json") if holding in _text(path)]


def _text(path: Path) -> str:
    """A file that may be deleted at any moment."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def wait_until(condition: Callable[[], Any], child: subprocess.Popen[bytes], seconds: float = 300) -> Any:
    """What `condition` returns once it is true. Fails when the child ends before, or the time does."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert child.poll() is None, f"the run ended with {child.returncode} before it could be disturbed"
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    return value


@pytest.fixture
def make_pipeline(tmp_path: Path) -> Callable[[str], Pipeline]:
    """`make_pipeline(name)`: an empty store."""

    def make(name: str = "own") -> Pipeline:
        home = tmp_path / name
        home.mkdir()
        return Pipeline(home / "store", home)

    return make


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Pipeline, Finished]:
    """A store in which the whole pipeline ran once, undisturbed. Tests may add to it, not take away."""
    home = tmp_path_factory.mktemp("finished")
    pipeline = Pipeline(home / "store", home)
    first = pipeline.run()
    assert first.status == 0, first.output
    return pipeline, first


@pytest.fixture
def copied(finished: tuple[Pipeline, Finished], make_pipeline: Callable[[str], Pipeline]) -> Callable[..., Pipeline]:
    """`copied(*steps)`: the finished store without releases and what `steps` made, to be disturbed."""
    original, _ = finished

    def copy(*without: str) -> Pipeline:
        mine = make_pipeline("copy")
        subprocess.run(["cp", "-r", original.store, mine.store], check=True)
        for key in (mine.store / "keys").glob("*.json"):
            committed = json.loads(key.read_bytes())
            if committed["payload"]["step"] in without:
                (mine.store / "records" / f"{committed['record']}.json").unlink(missing_ok=True)
                key.unlink()
        shutil.rmtree(mine.store / "releases")
        return mine

    return copy
