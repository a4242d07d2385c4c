"""How a step of the flow ends: which errors are one line, and which are worth another attempt."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

import flows.task
from artifacts.lease import LeaseLost
from artifacts.store import StoreError
from flows.task import stage
from nanocode.config import ComputeConfig, ConfigError
from nanocode.stopping import Interrupted
from nanocode.training.guard import TrainingError

FLOW = SimpleNamespace(settings=lambda: SimpleNamespace(compute=ComputeConfig()))
NO_RETRY = 202  # metaflow.exception.METAFLOW_EXIT_DISALLOW_RETRY


@pytest.fixture
def ending(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], Any]:
    """The exit status of a step whose body raises an error, with neither signal handlers nor watchers."""
    monkeypatch.setattr(flows.task, "listen", lambda *given: None)
    monkeypatch.setattr(flows.task, "watch_in_background", lambda *given: None)
    monkeypatch.delenv("NANOCODE_DEBUG", raising=False)

    def status(error: Exception) -> Any:
        @stage
        def body(flow: Any) -> None:
            raise error

        with pytest.raises(SystemExit) as ended:
            body(FLOW)
        return ended.value.code

    return status


@pytest.mark.parametrize(
    "error",
    [
        TrainingError("the loss is not finite at step 7"),
        ConfigError("no such source"),
        StoreError("the bucket does not exist"),
    ],
)
def test_an_error_that_would_only_come_back_is_not_tried_again(error, ending, capfd):
    assert ending(error) == NO_RETRY
    assert capfd.readouterr().err == f"error: {error}\n"


@pytest.mark.parametrize("error", [StoreError("the server is away", transient=True), OSError(28, "no space left")])
def test_an_error_that_may_pass_is_tried_again(error, ending):
    assert ending(error) == 1


@pytest.mark.parametrize("error", [Interrupted("stopped at step 3"), LeaseLost("another process has the lease")])
def test_an_interruption_ends_with_75(error, ending, capfd):
    assert ending(error) == 75
    assert capfd.readouterr().err == f"interrupted: {error}\n"


def test_what_nobody_expected_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr(flows.task, "listen", lambda *given: None)
    monkeypatch.setattr(flows.task, "watch_in_background", lambda *given: None)

    @stage
    def body(flow: Any) -> None:
        raise KeyError("a fault of ours")

    with pytest.raises(KeyError, match="a fault of ours"):
        body(FLOW)
