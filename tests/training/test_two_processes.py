"""Two processes with a sharded state between them: they save, stop and go on together."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("programs") / "two_processes_stop.py"


@pytest.mark.slow
def test_two_processes_stop_as_one_and_go_on_with_the_same_bits(tmp_path: Path) -> None:
    """One alone hears the signal, the other alone keeps the clock and writes; both restore the same checkpoint."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)]),
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(number), port, str(tmp_path)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for number in range(2)
    ]
    try:
        for process in started:
            said, _ = process.communicate(timeout=300)
            assert process.returncode == 0, said[-2_000:]
    finally:
        for process in started:
            process.kill()
    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in range(2))
    assert (first["saved"], second["saved"]) == ([2, 5, 7, 8], [])
    for seen in (first, second):
        assert seen["stopped"].startswith("stopped at step 5 of 8")
        assert seen["steps"] == list(range(1, 9))
        assert (seen["redone"], seen["layout"], all(seen["same"])) == (3.0, True, True)
