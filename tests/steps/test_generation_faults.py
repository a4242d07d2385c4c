"""Generation against an endpoint that fails as real ones do, and killed while at it."""

import json
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from nanocode.constitution.accounts import KILLED
from nanocode.constitution.append_file import AppendFile
from nanocode.constitution.ledger import Ledger
from nanocode.serving.faults import Behaviour
from nanocode.serving.teacher_process import TeacherServer

ROOT = Path(__file__).parents[2]
SOUL_PATH = ROOT / "configs" / "SOUL.md"
FAULTY = Behaviour(fault_rate=0.3, seed=3, hang_seconds=0.9, slow_seconds=0.1, retry_after_seconds=0.05)

PROGRAM = """
import json, sys
from pathlib import Path
from nanocode.config import ConstitutionConfig, EndpointConfig
from steps.generate_rollouts import Inputs, run

base_url, soul, folder, tasks = sys.argv[1:]
endpoint = EndpointConfig(base_url=base_url, max_attempts=20, timeout_seconds=0.7)
config = ConstitutionConfig(
    sft_tasks=int(tasks), preference_tasks=1, concurrency=16, generator=endpoint, critic=endpoint, reviser=endpoint
)
inputs = Inputs("sft", (0, 1), Path(soul), Path(folder) / "out", Path(folder) / "ledger", environment={})
metrics = run(config, 7, inputs, say=lambda line: print(line, file=sys.stderr))
print(json.dumps(metrics))
"""


class Generation:
    """One shard of generated conversations, made by a process of its own."""

    def __init__(self, folder, tasks):
        self.folder, self.tasks = folder, tasks
        self.ledger = folder / "ledger" / "sft-0-of-1.jsonl"

    def start(self, base_url):
        arguments = [sys.executable, "-c", PROGRAM, base_url, str(SOUL_PATH), str(self.folder), str(self.tasks)]
        return subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, base_url):
        said, complaints = self.start(base_url).communicate(timeout=1_000)
        return json.loads(said.splitlines()[-1]) if said else complaints

    def kill_at(self, answers, base_url):
        child = self.start(base_url)
        while child.poll() is None and self.answered() < answers:
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL, f"it ended before {answers} answers were in"

    def answered(self):
        return self.ledger.read_bytes().count(b"\n") if self.ledger.exists() else 0

    def keys(self):
        with Ledger(self.ledger) as ledger:
            return set(ledger)

    def output(self):
        return (self.folder / "out" / "conversations.jsonl").read_bytes()

    def account(self):
        """(keys reserved once for each attempt, keys of attempts that may have been billed for nothing, killed ones)"""
        with AppendFile(self.ledger.with_suffix(".accounts")) as file:
            records = [record for _, record in file.records()]
        reserved = [key for kind, key, *_ in records if kind == "reserved"]
        uncertain = [key for kind, key, _, tokens, _ in records if kind == "failed" and tokens]
        killed = [key for kind, key, reason, *_ in records if kind == "failed" and reason == KILLED]
        return reserved, uncertain, killed


def bill(base_url):
    with urllib.request.urlopen(f"{base_url}/_bill") as reply:
        return json.loads(reply.read())


def check_fault_run(tmp_path, tasks, kills):
    """Run with faults and `kills`, and without; what the server counted must agree with what the client wrote."""
    quiet, faulty = Generation(tmp_path / "quiet", tasks), Generation(tmp_path / "faulty", tasks)
    with TeacherServer(SOUL_PATH) as base_url:
        expected = quiet.finish(base_url)
    requests = len(quiet.keys())
    with TeacherServer(SOUL_PATH, FAULTY) as base_url:
        for number in range(1, kills + 1):
            faulty.kill_at(requests * number // (kills + 1), base_url)
        metrics = faulty.finish(base_url)
        counted = bill(base_url)
    assert metrics == expected
    assert metrics["kept"] + sum(metrics["dropped"].values()) == metrics["tasks"] == tasks
    assert faulty.output() == quiet.output()

    reserved, uncertain, killed = faulty.account()
    assert counted["refused"] > 0.05 * requests, "there were faults"
    assert counted["lost"] > 0.05 * requests, "of both kinds"
    assert set(counted["requests"]) == faulty.keys() == quiet.keys()
    for key, counts in counted["requests"].items():
        assert counts["delivered"] >= 1
        assert counts["delivered"] - 1 + counts["lost"] <= uncertain.count(key), "every bill for nothing is on file"
        assert sum(counts.values()) <= reserved.count(key), "nothing was sent that was not reserved"
    twice = [key for key, counts in counted["requests"].items() if counts["delivered"] > 1]
    assert set(twice) <= set(uncertain)
    assert len(killed) <= 16 * kills
    assert kills or not killed


@pytest.mark.slow
def test_faults_and_a_kill_change_nothing_in_the_data_and_every_bill_is_on_file(tmp_path):
    check_fault_run(tmp_path, tasks=14, kills=1)


@pytest.mark.slow
def test_two_thousand_prompts_with_a_third_of_faults_and_three_kills(tmp_path):
    check_fault_run(tmp_path, tasks=2_000, kills=3)


def test_without_a_kill_each_request_is_delivered_once(tmp_path):
    generation = Generation(tmp_path, 12)
    behaviour = Behaviour(
        fault_rate=0.3, faults=("429", "500", "error-in-200", "null", "torn"), retry_after_seconds=0.05
    )
    with TeacherServer(SOUL_PATH, behaviour) as base_url:
        assert generation.finish(base_url)["kept"] == 12
        counted = bill(base_url)
    assert {counts["delivered"] for counts in counted["requests"].values()} == {1}
    assert set(counted["requests"]) == generation.keys()
