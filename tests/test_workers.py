"""Work in processes: the answers of one process, in order, with nothing left running and no fault lost."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nanocode.tokenizer import word_counter
from nanocode.workers import Worker, WorkerError, in_processes

COUNTER = ["nanocode.tokenizer:word_counter"]
ITEMS = [[f"def f{number}(x): return x"] for number in range(30)]


def no_such(path: str) -> Callable[[str], str]:
    """What a process makes of its argument; here it cannot."""
    raise OSError(f"{path} cannot be read")


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_the_answers_come_in_order(processes: int) -> None:
    assert list(in_processes(word_counter, [], ITEMS, processes)) == list(map(word_counter(), ITEMS))


@pytest.mark.parametrize("items", [[], [["one text"]]])
def test_little_work_starts_no_process(items: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    assert list(in_processes(word_counter, [], items, 8)) == list(map(word_counter(), items))


def test_items_are_read_as_they_are_needed() -> None:
    taken = 0

    def endless() -> Iterator[list[str]]:
        nonlocal taken
        while True:
            taken += 1
            yield ["word"]

    stream = in_processes(word_counter, [], endless(), 2)
    next(stream)
    stream.close()
    assert taken <= 6, "four in work or waiting, one answered, one in hand"


def test_what_cannot_be_made_fails_here_with_its_own_words() -> None:
    with pytest.raises(OSError, match="here cannot be read"):
        next(in_processes(no_such, ["here"], ITEMS, 2))


def test_an_error_in_the_items_passes_through() -> None:
    def broken() -> Iterator[list[str]]:
        yield from ITEMS[:5]
        raise OSError("the shard is gone")

    with pytest.raises(OSError, match="the shard is gone"):
        list(in_processes(word_counter, [], broken(), 2))


def test_what_a_worker_cannot_do_is_reported() -> None:
    with pytest.raises(WorkerError, match="a worker process failed: AttributeError"):
        list(in_processes(word_counter, [], [["fine"], [7], ["fine"]], 2))  # type: ignore[list-item]


def test_a_worker_that_dies_is_reported() -> None:
    worker = Worker(COUNTER)
    worker.kill()
    with pytest.raises(WorkerError, match="ended with status -9"):
        worker.ask(["text"])
    worker.close()


def test_a_worker_ends_when_its_parent_is_killed() -> None:
    code = (
        "import time; from nanocode.workers import Worker; worker = Worker(['nanocode.tokenizer:word_counter']);"
        "worker.ask(['x']); print(worker.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker = Path("/proc") / parent.stdout.readline().strip()
    assert worker.exists()
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 10
    while worker.exists() and (worker / "cmdline").read_bytes():  # a zombie that nobody reaps has no command line
        assert time.monotonic() < deadline, "the worker outlived its parent"
        time.sleep(0.01)
