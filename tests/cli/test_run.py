"""`nanocode run` against stand-ins for the flow that report as real steps do, and its refusals on the command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nanocode.cli.run import flow_command
from nanocode.cli.supervisor import MAX_RESTARTS, Ending, Supervisor
from nanocode.config import ConfigError

ROOT = Path(__file__).parents[2]

# An orchestrator: runs each of its arguments as a step in a child of its own, and fails as Metaflow does.
ORCHESTRATOR = """
import os, subprocess, sys
os.environ["NANOCODE_WATCHED_PIDS"] += f" {os.getpid()}"
for step in sys.argv[2:]:
    if subprocess.run([sys.executable, "-c", sys.argv[1], step]).returncode:
        sys.exit(1)
"""
# A step: does what it is called, through the same door as the steps of the flow.
STEP = """
import os, signal, sys, time
from pathlib import Path
from types import SimpleNamespace
from flows.task import stage
from nanocode.stopping import Interrupted
from steps.signals import hush, stop_requested

what = sys.argv[1]
# By module, as the real ones: importing those would take seconds.
class OwnError(RuntimeError):
    __module__ = "nanocode.constitution.endpoint"
    transient = what == "busy"
def say(line):
    try:
        print(line, flush=True)
    except BrokenPipeError:
        hush()
class Flow:
    def settings(self):
        preemption = os.environ.get("PREEMPTION", "none")
        return SimpleNamespace(compute=SimpleNamespace(grace_seconds=1.0, preemption=preemption))
def work(flow):
    with Path(os.environ["STEP_LOG"]).open("a") as log:
        log.write(what + "\\n")
    runs = Path(os.environ["STEP_LOG"]).read_text().count(what + "\\n")
    if what == "fails":
        raise OwnError("the cure\\nis this")
    if what == "bug":
        raise KeyError("k")
    if what == "busy":
        raise OwnError("try later")
    if what == "killed" or (what == "killed-once" and runs == 1):
        os.kill(os.getpid(), signal.SIGKILL)
    while what == "saves":
        say("working")
        if stop_requested():
            time.sleep(0.3)
            Path(os.environ["STEP_LOG"] + ".saved").touch()
            raise Interrupted("stopped at step 3 of 9")
        time.sleep(0.05)
    while what == "deaf":
        time.sleep(0.05)
    while what == "slow":
        stop_requested()
        time.sleep(0.05)
work.__name__ = what
stage(work)(Flow())
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "steps.txt"


def supervisor(log: Path, *steps: str, said: list[str] | None = None, grace_seconds: float = 1.0) -> Supervisor:
    environment = {**os.environ, "STEP_LOG": str(log), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ORCHESTRATOR, STEP, *steps]
    heard = said if said is not None else []
    return Supervisor(command, environment, grace_seconds, heard.append, first_pause_seconds=0.01)


def ran(log: Path) -> list[str]:
    return log.read_text().split() if log.exists() else []


@pytest.mark.parametrize(
    ("steps", "ending"),
    [
        (["fine", "fine"], Ending(0)),
        (["fine", "fails"], Ending(1, "fails: the cure is this")),
        (["bug"], Ending(1, "bug: KeyError: 'k'")),
        (["busy"], Ending(75, "busy: try later")),
        (["killed"], Ending(75, "killed: was killed")),
    ],
)
def test_the_ending_says_what_became_of_the_steps(log: Path, steps: list[str], ending: Ending) -> None:
    assert supervisor(log, *steps).run(keep_going=False) == ending


def test_keep_going_starts_again_after_a_kill_and_not_after_an_error(log: Path) -> None:
    said: list[str] = []
    assert supervisor(log, "killed-once", "fine", said=said).run(keep_going=True) == Ending(0)
    assert ran(log) == ["killed-once", "killed-once", "fine"]
    assert said == ["killed-once: was killed; restart 1 of 10 in 0.01 s"]
    log.unlink()
    assert supervisor(log, "fails").run(keep_going=True).status == 1
    assert ran(log) == ["fails"]


def test_keep_going_gives_up_after_a_bounded_number_of_restarts(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nanocode.cli.supervisor.MAX_RESTARTS", 2)
    assert MAX_RESTARTS >= 2
    assert supervisor(log, "killed").run(keep_going=True) == Ending(75, "killed: was killed")
    assert ran(log) == ["killed"] * 3


def test_an_orchestrator_that_fails_without_any_step_is_an_error(tmp_path: Path) -> None:
    ending = Supervisor([sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ), 1.0, print).run(True)
    assert ending == Ending(1, "the flow ended with status 3: see its last lines above")


# The supervisor in a process of its own, to be signalled.
SUPERVISED = """
import os, sys
from nanocode.cli.supervisor import Supervisor
command = [sys.executable, "-c", *sys.argv[1:]]
ending = Supervisor(command, dict(os.environ), 1.0, print, 0.01).run(keep_going=True)
print(ending.message, flush=True)
sys.exit(ending.status)
"""


def start(log: Path, *steps: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "STEP_LOG": str(log), "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-c", SUPERVISED, ORCHESTRATOR, STEP, *steps],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    wait_for(lambda: ran(log))
    return child


def wait_for(condition, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_reaches_the_step_which_saves_and_the_run_ends_with_75(log: Path, number: int) -> None:
    child = start(log, "saves", "fine")
    child.send_signal(number)
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 75
    assert output.splitlines()[-1] == "saves: stopped at step 3 of 9"
    assert Path(f"{log}.saved").exists()
    assert ran(log) == ["saves"], "nothing is restarted or started after a signal"


def test_a_notice_is_a_stop_request_and_no_news_to_what_starts_after_it(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREEMPTION", f"file:{log}.notice")
    child = start(log, "saves", "fine")
    time.sleep(0.3)
    Path(f"{log}.notice").write_text("node drained\n")
    wait_for(lambda: ran(log) == ["saves", "saves"])
    assert Path(f"{log}.saved").exists()
    child.terminate()
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 75
    assert output.count(f"preempted: {log}.notice says: node drained; saving what there is") == 1
    assert "saves: stopped at step 3 of 9; restart 1 of 10" in output


@pytest.mark.parametrize(("step", "longest"), [("deaf", 2.0), ("slow", 4.0)])
def test_a_step_with_nothing_to_save_leaves_at_once_and_a_slow_one_with_the_grace(
    log: Path, step: str, longest: float
) -> None:
    child = start(log, step)
    time.sleep(0.3)
    started = time.monotonic()
    child.terminate()
    output, _ = child.communicate(timeout=30)
    assert child.returncode == 75
    assert time.monotonic() - started < longest
    assert f"{step} was stopped where it had nothing newer to save" in output


def test_kill_9_of_the_supervisor_leaves_nothing_running(log: Path) -> None:
    child = start(log, "saves")
    child.kill()  # not waited for: a zombie counts as gone
    child.communicate(timeout=30)  # ends when the last process that holds the output is gone
    assert Path(f"{log}.saved").exists()


def nanocode(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "nanocode.cli", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
    )


NANO = ROOT / "configs" / "nano.toml"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.toml"], "no config file at missing.toml"),
        ([NANO, "--override", "dpo.lrr=1"], "unknown key 'dpo.lrr': did you mean 'lr'?"),
        ([NANO, "--override", "model.heads=7"], "does not divide into 7 heads of even width"),
        ([NANO, "--override", "dpo"], "must look like section.key=value"),
        ([NANO, "--store", "ftp://x"], "use one of the supported kinds"),
    ],
)
def test_a_bad_request_is_one_line_and_status_2_before_anything_runs(
    tmp_path: Path, arguments: list[object], message: str
) -> None:
    done = nanocode("run", *arguments, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert message in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_flow_gets_the_config_by_its_whole_path_and_all_overrides(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = flow_command(Path("own.toml"), ["dpo.lr=1e-4", "seed=2"])
    assert command[2:] == ["--config", "config", f"{tmp_path}/own.toml", "run", "--override", "dpo.lr=1e-4; seed=2"]
    assert "--override" not in flow_command(Path("own.toml"), [])
    with pytest.raises(ConfigError, match="write that value into the config file"):
        flow_command(Path("own.toml"), ["name='a;b'"])
