"""The whole pipeline with nothing but a bucket between two machines: a real S3 server, Metaflow's state included."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.e2e.conftest import CONFIG, LONGEST_SECONDS, ROOT, Finished
from tests.servers import Server, seaweedfs, skipped_off_linux

pytestmark = pytest.mark.slow

NOT_CODE = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with skipped_off_linux(), seaweedfs(tmp_path / "seaweedfs") as server:
        yield server


def finish(command: list[object], root: Path, server: Server, **extra: str) -> Finished:
    """Run a command as on a machine of its own, whose copy of the project is at `root`."""
    unset = ("METAFLOW_DATASTORE_SYSROOT_LOCAL", "METAFLOW_DEFAULT_DATASTORE", "NANOCODE_CACHE", "AWS_PROFILE")
    environment: Mapping[str, str] = {
        **{name: value for name, value in os.environ.items() if name not in unset},
        **server.environment,
        "NANOCODE_STORE": f"s3://{server.bucket}/store",
        "METAFLOW_USER": "tester",
        **extra,
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=root,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=LONGEST_SECONDS,
    )
    return Finished(done.returncode, done.stdout.decode(errors="replace"))


def test_another_machine_with_the_same_bucket_finds_everything_made(server: Server, tmp_path: Path) -> None:
    machines = [tmp_path / "first", tmp_path / "second"]
    for machine in machines:
        shutil.copytree(ROOT, machine, ignore=NOT_CODE)
    flow = [sys.executable, "flows/full_pipeline.py", "--config", "config", CONFIG, "run"]

    first = finish(flow, machines[0], server)
    assert first.status == 0, first.output
    made = Counter(first.stages("made"))
    assert made["release"] == 1

    second = finish(flow, machines[1], server)
    assert second.status == 0, second.output
    assert second.stages("made") == []
    assert Counter(second.stages("cached")) == made
    assert "Traceback" not in first.output + second.output

    command = [sys.executable, "-m", "nanocode.cli"]
    [release] = json.loads(finish([*command, "models", "--json"], machines[1], server).output)
    verdict = json.loads(
        finish([*command, "lineage", "verify", release["digest"], "--json"], machines[1], server).output
    )
    assert (verdict["ok"], verdict["faults"]) == (True, [])
    assert not (machines[1] / ".nanocode" / "store").exists()
    # Metaflow's own state is in the bucket, too.
    resumed = finish([*flow[:2], "resume", "evaluate", "--origin-run-id", run_of(first)], machines[1], server)
    assert resumed.status == 0, resumed.output
    assert resumed.stages("cached") == ["evaluate", "evaluate", "release"]
    assert resumed.stages("made") == []


def run_of(finished: Finished) -> str:
    """Metaflow's number of a run."""
    return finished.output.partition("(run-id ")[2].partition(")")[0]
