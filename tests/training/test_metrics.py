"""The log line and the metrics file, with a clock that stands still until told."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from nanocode.config import OptimizerConfig
from nanocode.training.journal import Journal, Report, Return
from nanocode.training.metrics import StepFile, TrainingLog, Workload, rate_factor


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def report(step: int, steps: int = 1_000, seconds: float = 0.5, **named: float) -> Report:
    return Report(step, steps, seconds, {"loss": 2.0, **named})


def log(workload: Workload, every: float = 5.0) -> tuple[TrainingLog, Clock, list[str]]:
    clock, said = Clock(), []
    return TrainingLog(workload, said.append, every, clock), clock, said


def take(own: TrainingLog, clock: Clock, steps: range, journal: Journal, seconds: float = 0.5, of: int = 1_000) -> None:
    for step in steps:
        clock.now += seconds
        journal.add(report(step, of, seconds))
        own.step(journal.history[-1], None, journal)


def test_the_line_says_what_people_expect() -> None:
    workload = Workload("sft", 4_096, 2e12, ceiling_flops=1e13, rate_factor=lambda step: 1 - step / 1_000)
    own, clock, said = log(workload)
    journal = Journal(1_000)
    own.begin(journal)
    take(own, clock, range(1, 2), journal, seconds=30.0)  # it compiles
    assert said[0].startswith("sft step 1/1,000 | loss 2.0000 | rate x1 | 30,000 ms | 137 tokens/s | MFU 0.7% | ")
    take(own, clock, range(2, 12), journal)
    assert len(said) == 2, "a line every five seconds"
    line, memory = re.sub(r" \| (\d+\.\d) GB", "", said[1]), re.search(r" \| (\d+\.\d) GB", said[1])
    assert line == "sft step 11/1,000 | loss 2.0000 | rate x0.99 | 500 ms | 8,192 tokens/s | MFU 40.0% | ETA 8:14"
    assert memory is not None and float(memory[1]) > 0


def test_the_end_is_always_said_and_has_no_time_left() -> None:
    own, clock, said = log(Workload("dpo", 10, 1.0), every=1e9)
    journal = Journal(3)
    own.begin(journal)
    take(own, clock, range(1, 4), journal, of=3)
    (line,) = said
    assert line.startswith("dpo step 3/3 | loss 2.0000 | 500 ms | 20 tokens/s | ")
    assert "MFU" not in line and "ETA" not in line


def test_named_values_stand_in_the_line() -> None:
    own, _, said = log(Workload("dpo", 10, 1.0), every=0)
    journal = Journal(9)
    own.begin(journal)
    own.step(report(1, 9, accuracy=0.75), None, journal)
    assert "| loss 2.0000 | accuracy 0.7500 | 500 ms |" in said[0]


def test_the_smoothed_loss_is_right_at_the_first_step_and_after_a_resume() -> None:
    """nanochat's SFT shows 0.53 times the loss at step 0."""
    straight, _, said = log(Workload("sft", 10, 1.0), every=0)
    journal = Journal(9)
    straight.begin(journal)
    for step, loss in enumerate((8.0, 4.0, 2.0), start=1):
        journal.add(Report(step, 9, 0.5, {"loss": loss}))
        straight.step(journal.history[-1], None, journal)
    assert "loss 8.0000" in said[0]
    resumed, _, again = log(Workload("sft", 10, 1.0), every=0)
    before = journal.copy()
    before.rewind(2)
    resumed.begin(before)
    resumed.step(journal.history[2], None, journal)
    assert again[0] == "sft: goes on after step 2 of 9"
    assert again[1].split(" | ")[1] == said[2].split(" | ")[1]


def test_time_between_steps_counts_for_the_time_left() -> None:
    """Evaluations and saves: a step takes half a second, and a second passes from one to the next."""
    own, clock, said = log(Workload("pretrain", 10, 1.0), every=0)
    journal = Journal(100)
    own.begin(journal)
    for step in range(1, 11):
        clock.now += 1.0
        journal.add(report(step, 100))
        own.step(journal.history[-1], None, journal)
    assert "| 500 ms |" in said[-1]
    assert said[-1].endswith("ETA 1:30")


def test_a_return_is_said_once() -> None:
    own, clock, said = log(Workload("sft", 10, 1.0))
    journal = Journal(1_000)
    own.begin(journal)
    take(own, clock, range(1, 4), journal)
    journal.rewind(1)
    journal.returns.append(Return(4, "the loss became nan at step 4", (2, 3)))
    own.begin(journal)
    assert said == ["sft: the loss became nan at step 4; back to step 1, leaving out 2 batches (return 1)"]


def test_the_rate_follows_the_schedule_of_the_config() -> None:
    factor = rate_factor(OptimizerConfig(warmup_steps=10, warmdown_fraction=0.5, final_lr_fraction=0.0), 100)
    assert [factor(0), factor(9), factor(49), factor(75)] == pytest.approx([0.1, 1.0, 1.0, 0.5])


# --- the file


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_step_is_in_the_file_before_the_next_one(tmp_path: Path) -> None:
    path, journal = tmp_path / "logs" / "metrics.jsonl", Journal(1_000)
    own = StepFile(path, tokens=100)
    own.begin(journal)
    for step in (1, 2):
        journal.add(report(step))
        if step == 2:
            journal.observations.append({"step": 2, "bpb_docs": 1.5})
        own.step(journal.history[-1], None, journal)
        assert lines(path)[step - 1] == {"step": step, "seconds": 0.5, "tokens_per_second": 200.0, "loss": 2.0}
    assert lines(path)[2] == {"event": "observed", "step": 2, "bpb_docs": 1.5}


def test_what_a_kill_or_a_return_undid_is_not_in_the_file(tmp_path: Path) -> None:
    path, journal = tmp_path / "metrics.jsonl", Journal(1_000)
    first = StepFile(path, tokens=100)
    first.begin(journal)
    for step in range(1, 6):
        journal.add(report(step))
        first.step(journal.history[-1], None, journal)
    journal.rewind(3)  # the last checkpoint
    second = StepFile(path, tokens=100)
    second.begin(journal)
    journal.add(report(4))
    second.step(journal.history[-1], None, journal)
    assert [line["step"] for line in lines(path)] == [1, 2, 3, 4]
    journal.rewind(2)
    journal.returns.append(Return(5, "the loss became nan at step 5", (3, 4)))
    second.begin(journal)
    second.close()
    assert [line["step"] for line in lines(path)] == [5, 1, 2]
    assert lines(path)[0] == {"event": "returned", "step": 5, "fault": "the loss became nan at step 5"}
    assert [each.name for each in tmp_path.iterdir()] == ["metrics.jsonl"]
