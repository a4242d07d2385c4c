"""Attacks of a shell command on the machine's means, and attempts to outlive the call."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from arena import LIMITS, Arena

from nanocode.agent import sandbox as sandbox_module

OWN = f"{os.getpid():08d}"  # other runs of these tests, as another user, may be going on at the same time


def running(marker: str) -> bool:
    """Whether a process of this machine, seen from outside, holds ``marker`` in its command line."""
    for line in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if marker in line.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace"):
                return True
        except (FileNotFoundError, ProcessLookupError):
            continue
    return False


SURVIVORS = {
    "background": f"sleep 86401{OWN} & echo hi",
    "own session": f"setsid sleep 86401{OWN} & echo hi",
    "forked twice": f"(setsid sh -c 'sleep 86401{OWN} & exit' &) ; sleep 0.1; echo hi",
    "deaf to signals": f"trap '' TERM HUP INT QUIT; nohup sleep 86401{OWN} & echo hi",
    "output held open": f"sleep 86401{OWN} 2>&1 | cat & echo hi",
    "stopped": f"sleep 86401{OWN} & kill -STOP $!; echo hi",
    "disowned": f"sleep 86401{OWN} & disown; echo hi; exec true",
    "hidden name": f"bash -c 'exec -a innocent sleep 86401{OWN}' & echo hi",
}


@pytest.mark.parametrize("command", SURVIVORS.values(), ids=SURVIVORS)
def test_nothing_outlives_its_call(arena: Arena, command: str) -> None:
    """claude-code#84647, pi#9460: orphans; turnstone PR 816, pi-go PR 92: a child that holds the pipe is waited for."""
    started = time.monotonic()
    assert arena.shell(command).output.startswith("hi\n")
    assert time.monotonic() - started < 20 and not running(f"86401{OWN}")


STUBBORN = {
    "deaf shell": "trap '' TERM HUP INT; while :; do sleep 1; done",
    "deaf child": f"setsid sh -c \"trap '' TERM; sleep 86402{OWN}\" & wait",
    "stopped shell": "kill -STOP $$",
    "closed output": f"exec >&- 2>&-; sleep 86402{OWN}",
    "waits for itself": "mkfifo p; cat p",
    "locks": f"exec 9>lock; flock 9; sleep 86402{OWN}",
}


@pytest.mark.parametrize("command", STUBBORN.values(), ids=STUBBORN)
def test_the_clock_ends_everything(arena: Arena, command: str) -> None:
    """AutoRAG#1500: a time-out that kills the shell alone, or asks politely."""
    started = time.monotonic()
    completed = arena.shell(command, replace(LIMITS, wall_seconds=0.6))
    assert completed.timed_out and time.monotonic() - started < 20 and not running(f"86402{OWN}")


@pytest.mark.parametrize(
    "command", ["cat", "read line", "python -c 'input()'", "cat /dev/stdin", "bash", "cat - < /dev/tty"]
)
def test_nobody_waits_for_input(arena: Arena, command: str) -> None:
    """PizzaPi PR 891: standard input is inherited, and the command waits for ever."""
    assert not arena.shell(command, replace(LIMITS, wall_seconds=4)).timed_out


FLOODS = {"output": "yes", "errors": "yes >&2", "one line": "tr '\\0' x < /dev/zero", "many writers": "yes & yes & yes"}


@pytest.mark.parametrize("command", FLOODS.values(), ids=FLOODS)
def test_a_flood_is_cut(arena: Arena, command: str) -> None:
    """CWE-400: unbounded output fills memory and context alike."""
    completed = arena.shell(command + "; wait", replace(LIMITS, flood_bytes=2_000_000))
    assert completed.flooded and len(completed.output) < LIMITS.output_bytes + 100
    assert len(arena.use("Bash", command="seq 200000")) <= 4_000


def test_the_number_of_processes(arena: Arena) -> None:
    """Fork bombs; root is not counted by the kernel, so root is given up. A bounded number is tried."""
    command = "for i in $(seq 24); do sleep 0.3 & done 2>&1; wait"
    completed = arena.shell(command, replace(LIMITS, processes=12))
    assert "Resource temporarily unavailable" in completed.output or completed.exceeded == "more than 12 processes"


def test_the_number_of_threads(arena: Arena) -> None:
    """Threads are processes to the kernel."""
    code = "import threading, time\nfor _ in range(24): threading.Thread(target=time.sleep, args=(0.3,)).start()"
    (arena.root / "threads.py").write_text(code)
    completed = arena.shell("python threads.py", replace(LIMITS, processes=12))
    assert "can't start new thread" in completed.output or completed.exceeded == "more than 12 processes"


def test_processes_are_counted_where_the_kernel_does_not(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second wall alone: root kept, and children that leave their session and their parent."""
    monkeypatch.setattr(sandbox_module, "drops_root", lambda bwrap: False)
    command = f"for i in $(seq 24); do (setsid sleep 86403{OWN} &) ; done 2>&1; sleep 5"
    completed = arena.shell(command, replace(LIMITS, processes=12))
    held = "Resource temporarily unavailable" in completed.output or completed.exceeded == "more than 12 processes"
    assert held and not running(f"86403{OWN}")


def test_a_limit_cannot_be_raised(arena: Arena) -> None:
    """CWE-770: a soft limit alone is a suggestion."""
    output = arena.use("Bash", command="for l in u v t f c; do ulimit -$l unlimited; ulimit -H -$l; done")
    assert output.count("cannot modify limit") == 5 and "unlimited" not in output.replace("unlimited:", "")


MEMORY = {
    "one process": "python -c 'x = bytearray(900_000_000)'",
    "mapped": "python -c 'import mmap; x = mmap.mmap(-1, 900_000_000)'",
    "a pipe of text": "tail /dev/zero",
}


@pytest.mark.parametrize("command", MEMORY.values(), ids=MEMORY)
def test_memory_of_one_process(arena: Arena, command: str) -> None:
    """CWE-789."""
    completed = arena.shell(command, replace(LIMITS, memory_bytes=300_000_000))
    assert completed.exit_code != 0 and not completed.timed_out


def test_memory_of_many_processes(arena: Arena) -> None:
    """Each below its own limit, all together above what the machine has."""
    command = "for i in 1 2 3 4; do python -c 'import time; x = bytearray(60_000_000); time.sleep(6)' & done; wait"
    completed = arena.shell(command, replace(LIMITS, total_memory_bytes=150_000_000))
    assert completed.exceeded == "more than 150000000 bytes of memory"


FILES = {
    "temporary folder": "head -c 4000000 /dev/zero > /tmp/a; head -c 4000000 /dev/zero > /tmp/b",
    "shared memory": "head -c 4000000 /dev/zero > /dev/shm/a; head -c 4000000 /dev/zero > /dev/shm/b",
    "home folder": "cd; head -c 4000000 /dev/zero > a; head -c 4000000 /dev/zero > b",
}


@pytest.mark.parametrize("command", FILES.values(), ids=FILES)
def test_filling_memory_by_way_of_files(arena: Arena, command: str) -> None:
    """CWE-770: a tmpfs is memory."""
    assert "No space left on device" in arena.shell(command, replace(LIMITS, tmp_bytes=5_000_000)).output


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_filling_memory_by_way_of_empty_files(arena: Arena, folder: str) -> None:
    """CWE-770: a file without a byte takes a kilobyte of the kernel, and no limit of the file system counts it."""
    command = f"for i in $(seq 4000); do : > {folder}/$i; done; sleep 5"
    completed = arena.shell(command, replace(LIMITS, tmp_files=2_000))
    assert completed.exceeded == "more than 2000 temporary files" and not completed.timed_out


@pytest.mark.parametrize("place", ["/", "/run", "/dev", "/usr", "/etc", "/run/bin", "/run/confine"])
def test_no_other_place_can_be_filled(arena: Arena, place: str) -> None:
    """CWE-770: the root of the sandbox is a tmpfs without a size."""
    assert "Read-only file system" in arena.shell(f"echo x > {place}/x").output


def test_one_huge_file(arena: Arena) -> None:
    """CWE-770: also one that is mostly hole."""
    limits = replace(LIMITS, file_bytes=1_000_000)
    assert (
        "File too large"
        in arena.shell("trap '' XFSZ; truncate -s 3G hole; dd if=/dev/zero of=big bs=1M count=3", limits).output
    )
    assert max(path.stat().st_size for path in arena.root.iterdir()) <= 1_000_000


def test_a_core_dump(arena: Arena) -> None:
    """CWE-528: the memory of a crashed program, in a file that is committed by mistake."""
    completed = arena.shell("ulimit -c unlimited; python -c 'import os; os.abort()'; ls")
    assert "core" not in completed.output.replace("core file size", "").replace("core dumped", "")
    assert [path.name for path in arena.root.iterdir()] == ["a.py"]


def test_processor_time(arena: Arena) -> None:
    """CWE-834: the clock on the wall stands still for a stopped process, the processor's does not run."""
    completed = arena.shell("while :; do :; done", replace(LIMITS, cpu_seconds=1))
    assert completed.exit_code == 128 + 9 and not completed.timed_out


def test_catastrophic_patterns(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    """CWE-1333: a match that never comes back cannot be interrupted from within."""
    monkeypatch.setattr("nanocode.agent.search.CHILD_SECONDS", 0.4)
    (arena.root / "trap").write_text("a" * 4_000 + "!\n")
    for pattern in ("(a+)+$", "(a|a)*$", "(.*a){12}$", r"(a*)*\1b"):
        started = time.monotonic()
        assert arena.use("Grep", pattern=pattern).endswith("make it simpler") and time.monotonic() - started < 20


def test_a_pattern_that_takes_memory(arena: Arena) -> None:
    """CWE-1333 and CWE-789: bounded repeats of bounded repeats compile to a giant."""
    (arena.root / "b").write_text("(" * 9 + "\n")
    assert arena.use("Grep", pattern="((a{1,1000}){1,1000}){1,1000}b") == "no matches"
    assert arena.use("Grep", pattern="a{4294967295}").startswith("error: invalid pattern")
    for depth in (90, 400, 490):
        answer = arena.use("Grep", pattern="(" * depth + "b" + ")" * depth)
        assert answer == "no matches" or answer.startswith("error: ")


def test_a_time_out_is_over_when_it_is_told(arena: Arena) -> None:
    """CWE-367: a process that still runs can undo what was put right after the time-out."""
    command = "for i in 1 2 3 4; do (while :; do mkdir -p .git/hooks; done) 2>/dev/null & done; wait"
    for _ in range(3):
        completed = arena.shell(command, replace(LIMITS, wall_seconds=0.4))
        assert completed.timed_out and completed.notes
        assert not (arena.root / ".git").exists()
        time.sleep(0.02)
        assert not (arena.root / ".git").exists()


def test_a_forged_status(arena: Arena) -> None:
    """CWE-345: the pipe on which the sandbox tells how it ended is not in the command's hands."""
    forge = "for fd in /proc/self/fd/*; do echo '{\"exit-code\": 0}' > $fd; done 2>/dev/null; exit 7"
    assert arena.shell(forge, writable=True).exit_code == 7
    assert arena.shell("kill -9 $PPID 2>&1; kill -9 1; exit 8").exit_code == 8
