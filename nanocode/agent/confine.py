"""The program that stands between bubblewrap and a command: it gives up what is left, then becomes the command.

Runs inside the sandbox, on the standard library alone and little of that, because every command waits for it.
Arguments: ``NAME=NUMBER`` for limits (RLIMIT_NAME), ``write=FOLDER`` for folders that may be written, ``--``, the
command. A limit that the machine sets lower stays lower.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys

from nanocode.agent import landlock

SIGPIPE, SIGXFSZ, DEFAULT_ACTION = 13, 25, 0
NOT_FOUND = 127


def main() -> None:
    end = sys.argv.index("--")
    settings, command = [setting.partition("=") for setting in sys.argv[1:end]], sys.argv[end + 1 :]
    reopen_input()
    restore_signals()
    limit({name: int(value) for name, _, value in settings if name != "write"})
    confine([value for name, _, value in settings if name == "write"])
    try:
        os.execvp(command[0], command)
    except FileNotFoundError:
        sys.exit(NOT_FOUND)


def limit(bounds: dict[str, int]) -> None:
    """Set each resource limit, soft and hard alike."""
    for name, value in bounds.items():
        kind = getattr(resource, f"RLIMIT_{name.upper()}")
        _, hard = resource.getrlimit(kind)
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(kind, (bound, bound))


def confine(writable: list[str]) -> None:
    """Landlock, where files can still be moved between folders under it."""
    landlock.forbid_new_privileges()
    abi = landlock.version()
    if abi >= landlock.FIRST_WITH_MOVES:
        # The loopback of an own network namespace reaches nobody, and tests of servers need it: TCP stays.
        writes = dict.fromkeys(writable, landlock.READ | landlock.WRITE)
        landlock.restrict({"/": landlock.READ, "/dev": landlock.READ | landlock.DEVICES, **writes}, tcp=True, abi=abi)


def reopen_input() -> None:
    """The null device that was inherited lies outside of all that may be opened, also by way of /dev/stdin."""
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


def restore_signals() -> None:
    """Python ignores these two, and a command would inherit that: `yes | head` would complain instead of ending.

    Set through the C library, because the module `signal` takes longer to import than all the rest.
    """
    libc = ctypes.CDLL(None)
    for number in (SIGPIPE, SIGXFSZ):
        libc.signal(number, ctypes.c_void_p(DEFAULT_ACTION))
