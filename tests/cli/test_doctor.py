"""`nanocode doctor` finds what is broken, names the cure, and leaves no trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from nanocode.agent.sandbox import SandboxUnavailable
from nanocode.cli import doctor
from nanocode.config import EndpointConfig
from nanocode.config_file import load

ROOT = Path(__file__).parents[2]
NANO = ROOT / "configs" / "nano.toml"


def test_everything_a_run_needs_works_here_and_the_store_stays_empty_but_for_its_mark(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanocode.cli", "doctor", "--json", "--store", f"file:{tmp_path}/store"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)}
    layers = [name for name, finding in findings.items() if not finding["needed"]]
    needed = [name for name in findings if name not in layers]
    assert needed == ["python", "packages", "devices", "store", "sandbox", "endpoint", "disk"]
    assert layers[0] == "namespaces" and list(findings)[5 : 5 + len(layers)] == layers
    assert {name for name, finding in findings.items() if not finding["ok"]} == set()
    assert done.returncode == 0
    assert "embedded rule-based teacher starts" in findings["endpoint"]["detail"]
    assert "cpu" in findings["devices"]["detail"] or "cuda" in findings["devices"]["detail"]
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.stat().st_size]
    assert [path.name for path in left] == ["store.json"]


def test_a_store_that_cannot_be_written_is_a_problem_with_a_cure_and_exit_1(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = subprocess.run(
        [sys.executable, "-m", "nanocode.cli", "doctor", "--store", f"file:{tmp_path}/file/store"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    (position,) = [index for index, line in enumerate(lines) if line.startswith("store")]
    assert "problem" in lines[position]
    assert "cure: choose a store that can be written" in lines[position + 1]


def test_a_store_without_conditional_writes_is_found_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from artifacts.file_store import FileStore

    def always(self, name: str, data: bytes) -> bool:
        self.put_bytes(name, data)
        return True

    monkeypatch.setattr(FileStore, "put_if_absent", always)
    finding = doctor.try_out("store", lambda: doctor.check_store(lambda: FileStore(tmp_path / "s")))
    assert not finding.ok
    assert "created again True" in finding.detail
    assert "conditional writes" in finding.cure


def test_a_missing_sandbox_is_a_problem_with_its_own_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def unavailable() -> None:
        raise SandboxUnavailable("bubblewrap is not installed: install it")

    monkeypatch.setattr("nanocode.agent.sandbox.find_bwrap", unavailable)
    monkeypatch.setattr("nanocode.agent.sandbox.Sandbox", unavailable)
    finding = doctor.try_out("sandbox", doctor.check_sandbox)
    assert finding == doctor.Finding("sandbox", False, "bubblewrap is not installed", "install it")


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        allowed = self.headers.get("Authorization") == "Bearer secret"
        self.send_response(200 if allowed else 401)
        self.end_headers()
        self.wfile.write(b'{"object": "list", "data": [{"id": "writer"}]}')

    def log_message(self, *arguments: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def address() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


@pytest.mark.parametrize(
    ("model", "key", "ok", "told"),
    [
        ("writer", "secret", True, "answers with writer (critic)"),
        ("reader", "secret", False, "set model to one of: writer"),
        ("writer", "wrong", False, "401"),
        ("writer", "", False, "set the environment variable OWN_KEY"),
    ],
)
def test_a_configured_endpoint_is_asked_for_its_models(address: str, model: str, key: str, ok: bool, told: str) -> None:
    endpoint = EndpointConfig(base_url=address, model=model, api_key_env="OWN_KEY")
    finding = doctor.try_out("endpoint", lambda: doctor.check_endpoint(endpoint, "critic", {"OWN_KEY": key}))
    assert finding.ok is ok
    assert told in f"{finding.detail} {finding.cure}"
    assert "secret" not in f"{finding.detail} {finding.cure}"


def test_an_endpoint_that_is_down_is_a_problem() -> None:
    endpoint = EndpointConfig(base_url="http://127.0.0.1:9/v1")
    finding = doctor.try_out("endpoint", lambda: doctor.check_endpoint(endpoint, "critic", {}))
    assert (finding.ok, finding.detail.startswith("http://127.0.0.1:9/v1 does not answer")) == (False, True)
    assert "start the endpoint" in finding.cure


def test_each_distinct_endpoint_of_the_config_is_tried_once() -> None:
    assert [parts for _, _, parts in doctor.distinct_endpoints(load(NANO))] == ["generator, critic, reviser"]
    own = load(NANO, ["constitution.generator.base_url='http://127.0.0.1:9/v1'"])
    assert [parts for _, _, parts in doctor.distinct_endpoints(own)] == ["generator", "critic, reviser"]


def test_an_old_python_and_a_full_disk_are_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "PYTHON_FROM", (9, 0))
    monkeypatch.setattr(doctor, "NEEDED_BYTES", 10**18)
    found = [doctor.try_out("python", doctor.check_python), doctor.try_out("disk", lambda: doctor.check_disk(tmp_path))]
    assert [finding.ok for finding in found] == [False, False]
    assert "make PYTHON=" in found[0].cure
    assert "move the store" in found[1].cure


def test_a_bad_config_is_wrong_use(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "nanocode.cli", "doctor", "missing.toml"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (2, "error: no config file at missing.toml\n")
