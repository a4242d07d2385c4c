"""TensorBoard and Weights & Biases, with stand-ins for their modules: neither is installed here."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nanocode.config import ConfigError
from nanocode.training.journal import Journal, Report
from nanocode.training.trackers import open_trackers


def journal(done: int) -> Journal:
    own = Journal(9)
    for step in range(1, done + 1):
        own.add(Report(step, 9, 0.5, {"loss": 2.0}))
    return own


@pytest.mark.parametrize(("name", "module"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_what_is_not_installed_is_refused_with_the_extra_to_install(
    name: Any, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError) as caught:
        open_trackers([name], tmp_path, "sft")
    assert f"{module} is not installed: pip install 'nanocode[{name}]'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nothing_asked_nothing_imported(tmp_path: Path) -> None:
    assert open_trackers([], tmp_path, "sft") == []
    assert not list(tmp_path.iterdir())


def test_tensorboard_gets_every_scalar_and_forgets_what_was_undone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, ...]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int, filename_suffix: str) -> None:
            calls.append(("open", Path(folder).relative_to(tmp_path).as_posix(), purge_step, filename_suffix))

        def add_scalar(self, name: str, value: float, step: int) -> None:
            calls.append((name, value, step))

        def close(self) -> None:
            calls.append(("close",))

    monkeypatch.setitem(sys.modules, "tensorboardX", SimpleNamespace(SummaryWriter=SummaryWriter))
    (tracker,) = open_trackers(["tensorboard"], tmp_path, "sft")
    before = journal(2)
    tracker.begin(before)
    before.add(Report(3, 9, 0.5, {"loss": 1.5}))
    before.observations.append({"step": 3, "bpb_docs": 1.25, "samples": [{"prompt": "def "}]})
    tracker.step(before.history[-1], None, before)
    tracker.close()
    tracker.close()
    assert calls == [
        ("open", "tensorboard/sft", 3, ".2"),
        ("seconds", 0.5, 3),
        ("loss", 1.5, 3),
        ("bpb_docs", 1.25, 3),
        ("close",),
    ]


def test_wandb_gets_the_step_as_a_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refuses to log a step that lies before the last one, as a return to a checkpoint would."""
    calls: list[Any] = []
    run = SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append((name, step_metric)),
        log=calls.append,
        finish=lambda: calls.append("finish"),
    )
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **named: calls.append(named["name"]) or run))
    (tracker,) = open_trackers(["wandb"], tmp_path / "logs", "sft")
    own = journal(3)
    tracker.begin(own)
    tracker.step(own.history[-1], None, own)
    tracker.close()
    assert calls == ["sft", ("*", "step"), {"step": 3, "seconds": 0.5, "loss": 2.0}, "finish"]
