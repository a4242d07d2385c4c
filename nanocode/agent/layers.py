"""Which walls around a command stand here, each one leant against now and not guessed from versions."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from nanocode.agent import landlock
from nanocode.agent.sandbox import Limits, Sandbox, drops_root
from nanocode.agent.unprivileged import UNPRIVILEGED_UID

NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
TRIED_PROCESSES, ALLOWED_PROCESSES = 24, 12
# One question a line; each answer starts with its name.
QUESTIONS = f"""
for name in {" ".join(NAMESPACES)}; do echo "namespace $name $(readlink /proc/self/ns/$name)"; done
grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status | tr -d ':'
(echo x > /proc/self/comm) 2> /dev/null && echo "comm written" || echo "comm refused"
echo "core $(ulimit -H -c)"; echo "file $(ulimit -H -f)"; echo "processor $(ulimit -H -t)"
(for i in $(seq {TRIED_PROCESSES}); do sleep 0.2 & done; wait) 2>&1 | grep -q unavailable && echo "fork refused"
"""


@dataclass(frozen=True)
class Layer:
    """A wall: whether it stood when it was tried, and what that means."""

    name: str
    live: bool
    detail: str


def probe(sandbox: Sandbox) -> tuple[Layer, ...]:
    """Try every layer with real commands. Raises SandboxUnavailable when there is no sandbox to try."""
    limits = replace(Limits(), processes=ALLOWED_PROCESSES)
    with tempfile.TemporaryDirectory(prefix="nanocode-") as folder:
        output = sandbox.run(QUESTIONS, Path(folder), limits, writable=False).output
        watched = sandbox.run("sleep 2", Path(folder), replace(limits, total_memory_bytes=1), writable=False)
    told = {tuple(line.split()[:-1]): line.split()[-1] for line in output.splitlines() if " " in line or "\t" in line}
    own = [name for name in NAMESPACES if told.get(("namespace", name), "") not in ("", _ours(name))]
    counted = told.get(("fork",)) == "refused"
    tried = f"tried with {ALLOWED_PROCESSES} allowed: the kernel"
    return (
        Layer("namespaces", len(own) == len(NAMESPACES), f"own {', '.join(own)}"),
        Layer("capabilities", (told.get(("CapEff",)), told.get(("NoNewPrivs",))) == ("0" * 16, "1"), "none, for ever"),
        _user(sandbox),
        _landlock(told.get(("comm",)) == "refused"),
        Layer("seccomp", told.get(("Seccomp",)) == "2", "a filter of system calls"),
        Layer("limits", _limited(told, limits), "of each process: processor time, memory, files, no core dumps"),
        Layer("processes", counted, f"{tried} refused the next" if counted else f"{tried} did not count"),
        Layer("sums", bool(watched.exceeded), "processes and memory of a command in sum are watched"),
    )


def _ours(name: str) -> str:
    return str(Path(f"/proc/self/ns/{name}").readlink())


def _user(sandbox: Sandbox) -> Layer:
    if os.geteuid() != 0:
        return Layer("user", True, f"an ordinary user ({os.geteuid()})")
    if drops_root(sandbox.bwrap):
        return Layer("user", True, f"root is given up for user {UNPRIVILEGED_UID}, ids of the workspace mapped")
    return Layer("user", False, "root: the kernel or the file system maps no ids here; start as an ordinary user")


def _landlock(refused: bool) -> Layer:
    abi = landlock.version()
    return Layer("landlock", refused, f"version {abi}" if abi else "the kernel has none, or has it switched off")


def _limited(told: dict[tuple[str, ...], str], limits: Limits) -> bool:
    kilobytes = limits.file_bytes // 1024
    expected = {"core": "0", "file": str(kilobytes), "processor": str(limits.cpu_seconds)}
    return all(told.get((name,)) == value for name, value in expected.items())
