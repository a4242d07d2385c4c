"""Provenance of the machine: versions without imports, and the commit of this checkout and no other."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from artifacts.environment import environment, git_state

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").write_text("1")
    person = ["-c", "user.name=t", "-c", "user.email=t@t"]
    for arguments in (["init", "-q"], ["add", "file"], [*person, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *arguments], cwd=tmp_path, check=True)
    return tmp_path


def test_a_checkout_has_a_commit_and_says_whether_it_was_changed(checkout):
    clean = git_state(checkout)
    assert len(str(clean["commit"])) == 40
    assert clean["dirty"] is False
    (checkout / "file").write_text("2")
    assert git_state(checkout) == clean | {"dirty": True}


def test_a_folder_inside_another_checkout_does_not_borrow_its_commit(checkout):
    assert git_state(checkout / "inner") == {"commit": None, "dirty": None}


def test_versions_are_the_installed_ones(monkeypatch):
    monkeypatch.setattr("artifacts.environment.LIBRARIES", ("numpy", "no-such-library"))
    found = environment()
    assert found["numpy"] == version("numpy")
    assert found["no_such_library"] is None


def test_the_artifact_layer_imports_no_library_to_know_its_version():
    script = (
        "import sys, artifacts.build, artifacts.lineage, artifacts.environment as e; e.environment()\n"
        "assert not {'jax', 'numpy', 'flax', 'metaflow', 'nanocode', 'steps'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], cwd=PROJECT, check=True, timeout=30)
