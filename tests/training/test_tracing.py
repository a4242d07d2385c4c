from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import pytest

from nanocode.config import ConfigError
from nanocode.training import tracing
from nanocode.training.tracing import Tracer


class Profiler:
    """Stands for jax.profiler."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def start_trace(self, folder: str) -> None:
        self.calls.append(f"start {Path(folder).name}")

    def stop_trace(self) -> None:
        self.calls.append("stop")

    def StepTraceAnnotation(self, name: str, step_num: int) -> object:
        self.calls.append(f"{name} {step_num}")
        return tracing.nullcontext()


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    own = Profiler()
    monkeypatch.setattr(tracing.jax, "profiler", own)
    return own


def test_the_asked_steps_are_profiled_and_no_others(profiler: Profiler, tmp_path: Path) -> None:
    said: list[str] = []
    tracer = Tracer(2, 3, tmp_path / "profile", said.append)
    for step in range(1, 5):
        with tracer(step):
            profiler.calls.append(f"work {step}")
    tracer.close()
    assert profiler.calls == [
        *("work 1", "start profile", "step 2", "work 2", "step 3", "work 3", "stop", "work 4"),
    ]
    assert said == [f"profile of steps 2 to 3: {tmp_path / 'profile'}"]


def test_a_run_that_ends_inside_the_range_still_ends_its_profile(profiler: Profiler, tmp_path: Path) -> None:
    tracer = Tracer(2, 30, tmp_path, lambda line: None)
    with tracer(2):
        pass
    tracer.close()
    assert profiler.calls[-1] == "stop"


def test_a_run_that_goes_on_after_the_range_takes_no_profile(profiler: Profiler, tmp_path: Path) -> None:
    tracer = Tracer(2, 3, tmp_path, lambda line: None)
    with tracer(9):
        pass
    tracer.close()
    assert profiler.calls == []


def test_a_range_that_ends_before_it_starts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="profile_steps 5:2 ends before it starts"):
        Tracer(5, 2, tmp_path, lambda line: None)


def test_a_profile_is_written(tmp_path: Path) -> None:
    tracer = Tracer(1, 1, tmp_path / "profile", lambda line: None)
    with tracer(1):
        jnp.ones(3).block_until_ready()
    assert list((tmp_path / "profile").rglob("*.xplane.pb"))
