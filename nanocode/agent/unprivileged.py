"""Started as root, give root up and become a program: the kernel counts the processes of every user but root.

Another user could not write a workspace that belongs to root, nor reach one below a closed home folder. So the folders
that are needed are mounted over themselves, in a mount namespace of this process alone, with ids mapped: what belongs
to root on disk belongs to that user here, and what that user makes belongs to root on disk (Linux 5.12,
mount_setattr(2)). Run as a program of its own, on the standard library alone and little of that, because every command
waits for it: arguments ``own=PATH`` (none inside another), ``need=PATH`` (must be readable afterwards), ``--``, the
program and its arguments. Where it cannot be done nothing is run, and the exit status is CANNOT_DROP.
"""

from __future__ import annotations

import ctypes
import os
import sys

CANNOT_DROP = 97
# Between the ranges that distributions hand out to people, services and containers.
UNPRIVILEGED_UID = 60_999
HIGHEST_ID = 65_535

OPEN_TREE, MOVE_MOUNT, MOUNT_SETATTR = 428, 429, 442
NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000
PRIVATE, RECURSIVE = 0x40000, 0x4000
HERE, EMPTY_PATH, WHOLE_TREE = -100, 0x1000, 0x8000
CLONE_TREE, FROM_EMPTY_PATH, ID_MAPPED = 1, 4, 0x00100000


class _MountAttributes(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "user_namespace"))


def main() -> None:
    end = sys.argv.index("--")
    settings, command = [setting.partition("=") for setting in sys.argv[1:end]], sys.argv[end + 1 :]
    try:
        drop(UNPRIVILEGED_UID, [value for name, _, value in settings if name == "own"])
        for path in [value for name, _, value in settings if name == "need"]:
            if not os.access(path, os.R_OK):
                raise PermissionError(f"{path} cannot be read")
        os.execv(command[0], command)
    except OSError as error:
        sys.stderr.write(f"cannot become user {UNPRIVILEGED_UID}: {error}\n")
        sys.exit(CANNOT_DROP)


def drop(uid: int, owned: list[str]) -> None:
    """Become ``uid``, without groups and capabilities, owner of root's files below ``owned``. Raises OSError."""
    namespace = exchanged_ids(uid)
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.unshare(NEW_MOUNTS))
    _check(libc.mount(None, b"/", None, ctypes.c_ulong(PRIVATE | RECURSIVE), None))
    for path in owned:
        _mount_mapped(path, namespace)
    os.close(namespace)
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def exchanged_ids(uid: int) -> int:
    """A descriptor of a user namespace that exchanges root and ``uid`` and keeps every other id. Raises OSError."""
    ready_read, ready_write = os.pipe()
    hold_read, hold_write = os.pipe()
    holder = os.fork()
    if holder == 0:
        os.close(hold_write)
        done = ctypes.CDLL(None).unshare(NEW_USERS) == 0
        os.write(ready_write, b"y" if done else b"n")
        # The namespace needs a member until its descriptor is open: wait for the other end to be closed.
        os.read(hold_read, 1)
        os._exit(0)
    try:
        if os.read(ready_read, 1) != b"y":
            raise PermissionError("no user namespaces here")
        ranges = [(0, uid, 1), (1, 1, uid - 1), (uid, 0, 1), (uid + 1, uid + 1, HIGHEST_ID - uid)]
        lines = "".join(f"{inside} {outside} {count}\n" for inside, outside, count in ranges)
        for name in ("uid_map", "gid_map"):
            with open(f"/proc/{holder}/{name}", "w") as file:  # noqa: PTH123 - pathlib takes longer than all the rest
                file.write(lines)
        return os.open(f"/proc/{holder}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for descriptor in (ready_read, ready_write, hold_read, hold_write):
            os.close(descriptor)
        os.waitpid(holder, 0)


def _mount_mapped(path: str, namespace: int) -> None:
    name = os.fsencode(path)
    tree = _system_call(OPEN_TREE, HERE, name, CLONE_TREE | os.O_CLOEXEC | WHOLE_TREE)
    try:
        attributes = _MountAttributes(ID_MAPPED, 0, 0, namespace)
        size = ctypes.sizeof(attributes)
        _system_call(MOUNT_SETATTR, tree, b"", EMPTY_PATH | WHOLE_TREE, ctypes.byref(attributes), size)
        _system_call(MOVE_MOUNT, tree, b"", HERE, name, FROM_EMPTY_PATH)
    finally:
        os.close(tree)


def _system_call(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = (ctypes.c_long(argument) if isinstance(argument, int) else argument for argument in arguments)
    return _check(int(libc.syscall(ctypes.c_long(number), *words)))


def _check(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
