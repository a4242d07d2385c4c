"""The arena of each attack: built before it, looked over after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from arena import KEY_NAME, LIMITS, SECRET, Arena, snapshot

from nanocode.agent.policy import Policy
from nanocode.agent.sandbox import Sandbox
from nanocode.agent.tools import Toolbox, ToolLimits


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    """Must work: on Linux a missing layer fails here and is not skipped."""
    if sys.platform != "linux":
        pytest.skip("namespaces are Linux's")
    sandbox = Sandbox()
    sandbox.check()
    return sandbox


@pytest.fixture
def arena(tmp_path: Path, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arena]:
    """Whatever was tried, what lies outside is afterwards what it was before."""
    root, outside, evil = (tmp_path / name for name in ("repo", "outside", "repo-evil"))
    for folder in (root, outside, evil):
        folder.mkdir()
    for folder in (outside, evil):
        (folder / "secret.txt").write_text(SECRET)
    (root / "a.py").write_text("x = 1\n")
    monkeypatch.setenv(KEY_NAME, SECRET)
    # Where the agent is usually started: whatever it looks up by a relative name, it finds in a hostile folder.
    monkeypatch.chdir(root)
    toolbox = Toolbox(root, Policy("auto"), sandbox, limits=ToolLimits(bash=LIMITS))
    before = snapshot(outside), snapshot(evil)
    yield Arena(root, outside, evil, toolbox, sandbox)
    assert (snapshot(outside), snapshot(evil)) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["outside", "repo", "repo-evil"]
