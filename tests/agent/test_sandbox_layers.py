"""What is told about the walls is what was found when they were leant against."""

import os
import sys
from pathlib import Path

import pytest

from nanocode.agent import layers, profile
from nanocode.agent import sandbox as sandbox_module
from nanocode.agent.layers import Layer, probe
from nanocode.agent.sandbox import Sandbox

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux; there it must work")


def test_every_wall_stands_here() -> None:
    # On a machine where one is missing this fails: a layer that nobody misses is a layer that nobody has.
    found = probe(Sandbox())
    assert [layer.name for layer in found if not layer.live] == []
    assert [layer.name for layer in found] == [
        *("namespaces", "capabilities", "user", "landlock", "seccomp", "limits", "processes", "sums")
    ]


def test_a_wall_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module, "seccomp_filter", lambda: b"")
    monkeypatch.setattr(sandbox_module, "drops_root", lambda bwrap: False)
    monkeypatch.setattr(layers, "drops_root", lambda bwrap: False)
    real = profile.options

    def without_network(workspace: Path, *rest: object) -> list[str]:
        return [*real(workspace, *rest), "--share-net"]  # type: ignore[arg-type]

    monkeypatch.setattr(sandbox_module.profile, "options", without_network)
    missing = {layer.name for layer in probe(Sandbox()) if not layer.live}
    assert missing == {"namespaces", "seccomp"} | ({"user", "processes"} if os.geteuid() == 0 else set())


def test_an_ordinary_user_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers.os, "geteuid", lambda: 1234)
    assert layers._user(Sandbox()) == Layer("user", True, "an ordinary user (1234)")
