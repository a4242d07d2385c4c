"""Bubblewrap's arguments: what a command sees of the machine, and as whom."""

from __future__ import annotations

import stat
import sys
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import cache_from_source
from pathlib import Path

from nanocode.agent import confine, landlock
from nanocode.agent.protected import ProtectedPaths

PROJECT = "/project"
# Where the program that becomes the command stands inside.
LIBRARY = "/run/confine"
INSIDE_UID = "1000"


def environment() -> dict[str, str]:
    """The whole environment of a command; nothing is inherited. Hashes are fixed so that two runs print the same."""
    return {
        "PATH": f"/run/bin:{base_prefix() / 'bin'}:/usr/local/bin:/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONHASHSEED": "0",
    }


def base_prefix() -> Path:
    """The installation of the running interpreter, below which a virtual environment borrows everything."""
    return Path(sys.base_prefix).resolve()


@lru_cache(maxsize=1)
def interpreter() -> Path:
    """The running interpreter itself, not a virtual environment's link to it."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


@lru_cache(maxsize=1)
def _fixed_arguments() -> tuple[str, ...]:
    """The part that depends on the machine alone: system folders, the interpreter, its names on PATH."""
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
    if not base_prefix().is_relative_to("/usr"):
        arguments += ["--ro-bind", str(base_prefix()), str(base_prefix())]
    for name in ("python", "python3"):
        arguments += ["--symlink", str(interpreter()), f"/run/bin/{name}"]
    for file in library_files():
        # With its byte code, where there is some: compiling it anew takes longer than all that it does.
        compiled = Path(cache_from_source(file))
        for source, place in ((file, ""), (compiled, f"{compiled.parent.name}/")):
            arguments += ["--ro-bind-try", str(source), f"{LIBRARY}/nanocode/agent/{place}{source.name}"]
    return tuple(arguments)


@lru_cache(maxsize=1)
def library_files() -> tuple[Path, ...]:
    """The modules that run inside, on the standard library alone."""
    return tuple(Path(str(module.__file__)).resolve() for module in (confine, landlock))


def needed_paths() -> list[Path]:
    """What must be readable, apart from system folders and the workspace, for a sandbox to start."""
    return [base_prefix(), interpreter(), *library_files()]


def options(workspace: Path, tmp_bytes: int, writable: bool, protected: ProtectedPaths) -> list[str]:
    """Everything but the command, for a resolved ``workspace``; the order of mounts matters."""
    arguments = ["--unshare-all", "--unshare-user", "--uid", INSIDE_UID, "--gid", INSIDE_UID]
    arguments += ["--disable-userns", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--clearenv"]
    for name, value in environment().items():
        arguments += ["--setenv", name, value]
    arguments += _fixed_arguments()
    size = ["--size", str(tmp_bytes), "--tmpfs"]
    arguments += ["--proc", "/proc", "--dev", "/dev", *size, "/dev/shm", "--remount-ro", "/dev", *size, "/tmp"]
    arguments += ["--bind" if writable else "--ro-bind", str(workspace), PROJECT]
    for path in protected.existing(workspace):
        arguments += ["--ro-bind", str(workspace / path), f"{PROJECT}/{path}"]
    for path in protected.special:
        arguments += ["--ro-bind-try", "/dev/null", f"{PROJECT}/{path}"]
    # The root is a tmpfs without a size: unless it is closed, a command can fill the machine's memory through it.
    return [*arguments, "--remount-ro", "/", "--chdir", PROJECT]


def starter(bounds: Mapping[str, int], writable: bool) -> list[str]:
    """What bubblewrap starts: Python, which confines itself and then becomes the command that follows.

    The folders that may be written say what the mounts say.
    """
    program = f"import sys; sys.path.insert(0, {LIBRARY!r}); from nanocode.agent.confine import main; main()"
    folders = [*([PROJECT] if writable else []), "/tmp", "/dev/shm"]
    settings = [*(f"{name}={value}" for name, value in bounds.items()), *(f"write={folder}" for folder in folders)]
    return [str(interpreter()), "-I", "-S", "-c", program, *settings, "--"]


def closed_ancestor(path: Path) -> Path | None:
    """The outermost folder on the way to ``path``, itself included, that others may not enter."""
    for folder in [*reversed(path.parents), path]:
        if folder.is_dir() and not folder.stat().st_mode & stat.S_IXOTH:
            return folder
    return None
