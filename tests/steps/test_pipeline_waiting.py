"""A run whose stage another process is making: it waits, can be stopped, and stops when its own lease is lost."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from artifacts.build import Build, RunInfo, Stage, cache_key
from artifacts.lease import Terms, hold, lease_name
from artifacts.repository import Repository
from artifacts.store import open_store
from nanocode import config_file as configs
from nanocode.stopping import Interrupted
from steps import pipeline

TINY = Path(__file__).parents[1] / "e2e" / "tiny.toml"
STAGE = Stage("import_file", "t", "tiny/t", "steps.import_file", {})


@pytest.fixture
def run(tmp_path: Path) -> pipeline.Run:
    repository = Repository(open_store(f"file:{tmp_path / 'store'}"))
    run = pipeline.Run(configs.load(TINY, ["compute.lease_seconds=7"]), repository, RunInfo("Test", "1", "tester"))
    return replace(run, stop_requested=lambda: False, say=lambda line: None, work=tmp_path / "work")


def produce(making: Build) -> dict[str, object]:
    (making.output / "a").write_text("a")
    return {}


def test_a_run_that_waits_for_another_can_be_stopped(run: pipeline.Run) -> None:
    said: list[str] = []
    key, _ = cache_key(run.repository, STAGE, run.root)
    with hold(run.repository.store, key, lambda: None, Terms()):
        waiting = replace(run, say=said.append, stop_requested=lambda: any("is making this" in line for line in said))
        started = time.monotonic()
        with pytest.raises(Interrupted, match="stopped while another process made this"):
            waiting.make(STAGE, produce)
        assert time.monotonic() - started < 5
    assert run.make(STAGE, produce)


def test_the_config_says_how_long_a_lease_lives(run: pipeline.Run) -> None:
    def look(making: Build) -> dict[str, object]:
        held = json.loads(run.repository.store.read(lease_name(making.key)))
        assert 0 < held["expires"] - time.time() <= 7
        return produce(making)

    assert run.make(STAGE, look)


@pytest.mark.parametrize(("asked", "lost", "stops"), [(False, False, False), (True, False, True), (False, True, True)])
def test_a_stage_stops_when_asked_to_and_when_its_lease_is_lost(
    run: pipeline.Run, monkeypatch: pytest.MonkeyPatch, asked: bool, lost: bool, stops: bool
) -> None:
    answers: list[Callable[[], bool]] = []

    def look(making: Build) -> dict[str, object]:
        answers.append(replace(run, stop_requested=lambda: asked).stop_asked(making))
        monkeypatch.setattr(type(making.lease), "lost", lost)
        assert answers[0]() is stops
        monkeypatch.undo()
        return produce(making)

    assert run.make(STAGE, look)
