"""A run that is killed or stopped at any point ends, when it is started again, with the very same model."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest
from conftest import Finished, wait_until

pytestmark = pytest.mark.slow

# A checkpoint after every step: each is a moment at which to be killed.
EVERY_STEP = "compute.checkpoint_every_seconds=0.001"
TRAINED = ("pretrain", "evaluate", "sft", "reference", "dpo", "release")
ORBAX, LEDGER = "manifest.ocdbt", ".jsonl"


def disturb(pipeline, holding, number, log):
    """Start the run, wait for a committed checkpoint, and send a signal to the whole process group."""
    is_saved = new_checkpoint(pipeline, holding)
    child = pipeline.start(pipeline.flow(EVERY_STEP), log)
    wait_until(is_saved, child)
    os.killpg(child.pid, number)
    return child.wait(60)


def new_checkpoint(pipeline, holding):
    """Whether there is a checkpoint that was not there at this call: the copied store may hold one of another test."""
    before = set(pipeline.checkpoints(holding))
    return lambda: set(pipeline.checkpoints(holding)) - before


def test_kill_9_of_everything_in_pretraining_and_again_in_sft(copied, finished, tmp_path):
    pipeline = copied(*TRAINED)
    assert disturb(pipeline, ORBAX, signal.SIGKILL, tmp_path / "first.txt") == -signal.SIGKILL
    second = tmp_path / "second.txt"
    child = pipeline.start(pipeline.flow(EVERY_STEP), second)
    wait_until(lambda: "pretrain: made" in second.read_text(), child)
    wait_until(new_checkpoint(pipeline, ORBAX), child)
    os.killpg(child.pid, signal.SIGKILL)
    child.wait(60)
    assert "pretrain: starts again after 1 interruption(s)" in second.read_text()

    last = pipeline.run()
    assert last.status == 0, last.output
    assert "sft: starts again after 1 interruption(s)" in last.output
    assert "pretrain" in last.stages("cached")
    assert "pretrain: goes on after step" in second.read_text()
    assert "sft: goes on after step" in last.output
    for name in ("tiny/base", "tiny/sft"):
        assert pipeline.curve(name) == finished[0].curve(name), "as if nothing had happened"
    assert pipeline.digest() == finished[0].releases()[0]["digest"]
    assert pipeline.nanocode("lineage", "verify", "tiny").status == 0


def test_kill_9_in_generation_repeats_no_finished_request(copied, finished, tmp_path):
    pipeline = copied("generate_rollouts", "gather_rollouts", "sft", "reference", "dpo", "evaluate", "release")
    assert disturb(pipeline, LEDGER, signal.SIGKILL, tmp_path / "first.txt") == -signal.SIGKILL
    again = pipeline.run()
    assert again.status == 0, again.output
    assert "requests were answered before and are not repeated" in again.output
    assert pipeline.digest() == finished[0].releases()[0]["digest"]


def test_a_step_whose_orchestrator_is_killed_saves_and_ends_by_itself(copied, tmp_path):
    pipeline = copied(*TRAINED)
    log, is_saved = tmp_path / "log.txt", new_checkpoint(pipeline, ORBAX)
    child = pipeline.start(pipeline.flow(EVERY_STEP), log)
    wait_until(is_saved, child)
    os.kill(child.pid, signal.SIGKILL)
    child.wait(10)
    deadline = time.monotonic() + 30
    while members(child.pid) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert members(child.pid) == []
    assert is_saved()
    assert not pipeline.made("pretrain")


def test_two_runs_at_once_make_everything_once_and_end_with_one_release(copied, finished, tmp_path):
    pipeline = copied(*TRAINED)
    other = type(pipeline)(pipeline.store, tmp_path)
    logs = [tmp_path / f"{number}.txt" for number in range(2)]
    children = [each.start(each.flow(), log) for each, log in zip((pipeline, other), logs, strict=True)]
    assert [child.wait(600) for child in children] == [0, 0]
    outcomes = [Finished(0, log.read_text()) for log in logs]
    made = [stage for each in outcomes for stage in each.stages("made")]
    assert sorted(made) == sorted(
        ["pretrain", "evaluate", "sft", "reference", "dpo", "evaluate", "evaluate", "release"]
    )
    assert any(" is making this: waiting for what it makes" in each.output for each in outcomes)
    assert {release["digest"] for release in pipeline.releases()} == {finished[0].releases()[0]["digest"]}


def members(group: int) -> list[int]:
    """The living processes of a process group (zombies that nobody reaps left out)."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            state, _, owner = (process / "stat").read_text(errors="replace").rpartition(") ")[2].split()[:3]
        except OSError:
            continue
        if int(owner) == group and state != "Z":
            found.append(int(process.name))
    return found


def test_sigterm_to_nanocode_run_saves_and_ends_with_75_inside_the_grace(copied, finished, tmp_path):
    pipeline = copied(*TRAINED)
    log, is_saved = tmp_path / "log.txt", new_checkpoint(pipeline, ORBAX)
    command = [sys.executable, "-m", "nanocode.cli", "run", pipeline.flow()[4], "--override", EVERY_STEP]
    child = pipeline.start(command, log, PYTHONPATH=str(pipeline.root))
    wait_until(is_saved, child)
    started = time.monotonic()
    os.kill(child.pid, signal.SIGTERM)
    status = child.wait(60)
    assert (status, time.monotonic() - started < 25) == (75, True), log.read_text()
    last = log.read_text().splitlines()[-1]
    assert last.startswith("interrupted: pretrain: stopped at step ")
    assert "Traceback" not in log.read_text()

    again = pipeline.nanocode("run", pipeline.flow()[4])
    assert again.status == 0, again.output
    assert "pretrain: starts again after 1 interruption(s)" in again.output
    assert "pretrain: goes on after step" in again.output
    assert pipeline.curve("tiny/base") == finished[0].curve("tiny/base")
    assert pipeline.digest() == finished[0].releases()[0]["digest"]
