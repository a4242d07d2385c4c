"""A tree of processes is counted whole, whoever their parents are now."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanocode.agent import supervision
from nanocode.agent.supervision import NOT_COUNTED, Sums, descendants, resident_bytes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux; there it must work")

CHILDREN = 5


@pytest.fixture
def tree() -> Iterator[int]:
    """The number of a shell with CHILDREN children, one of them with a session of its own."""
    command = "setsid sleep 60 & for i in 1 2 3 4; do sleep 60 & done; echo ready; wait"
    with subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE, start_new_session=True) as shell:
        assert shell.stdout is not None and shell.stdout.readline() == b"ready\n"
        deadline = time.monotonic() + 5
        while len(list(descendants(shell.pid))) != CHILDREN and time.monotonic() < deadline:
            time.sleep(0.01)
        yield shell.pid
        for pid in [*descendants(shell.pid), shell.pid]:
            os.kill(pid, 9)


def test_processes_are_counted_in_sum(tree: int) -> None:
    assert len(set(descendants(tree))) == CHILDREN
    plenty = 1 << 40
    assert Sums(CHILDREN - NOT_COUNTED, plenty, plenty).exceeded(tree) == ""
    assert (
        Sums(CHILDREN - NOT_COUNTED - 1, plenty, plenty).exceeded(tree)
        == f"more than {CHILDREN - NOT_COUNTED - 1} processes"
    )


def test_memory_is_counted_in_sum(tree: int) -> None:
    used = sum(resident_bytes(pid) for pid in descendants(tree))
    assert used > 0
    assert Sums(100, used // 2, 100).exceeded(tree) == f"more than {used // 2} bytes of memory"


def test_a_process_that_has_ended_uses_nothing() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert (
        list(descendants(ended.pid)) == []
        and resident_bytes(ended.pid) == 0
        and Sums(0, 0, 0).exceeded(ended.pid) == ""
    )


def test_a_process_that_enters_its_root_meanwhile_is_never_told_the_files_of_the_machine(tmp_path: Path) -> None:
    """The same path through /proc leads to our file system and, a moment later, to one of its own."""
    theirs, its, moved = Path("/dev/shm"), tmp_path / "its", tmp_path / "moved"
    assert theirs.stat().st_dev != tmp_path.stat().st_dev, "the test needs two file systems"
    usage = os.statvfs(theirs)
    own = usage.f_files - usage.f_ffree
    moving, done = threading.Event(), threading.Event()

    def move() -> None:
        while not done.is_set():
            for target in (theirs, tmp_path):
                moved.symlink_to(target)
                moved.rename(its)
                moving.set()

    its.symlink_to(theirs)
    mover = threading.Thread(target=move)
    mover.start()
    try:
        assert moving.wait(10)
        told = {supervision.files_apart_from(tmp_path, its) for _ in range(3_000)}
    finally:
        done.set()
        mover.join()
    assert all(abs(count - own) < 1_000 for count in told - {0}), "others may use that one too"
