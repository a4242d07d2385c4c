"""Landlock: a process gives up, for itself and all its children, every file that it does not name.

The third wall behind mounts and permissions: whatever a mount leaves open by mistake, the kernel still refuses to a
process that has restricted itself. Standard library only, because this file is also run inside the sandbox. Numbers and
structures: the kernel's ``include/uapi/linux/landlock.h``; a kernel without Landlock, or an older one, restricts less.
"""

from __future__ import annotations

import ctypes
import os
import stat

CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
CREATE_RULESET_VERSION = 1
RULE_PATH_BENEATH = 1
PR_SET_NO_NEW_PRIVS = 38

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
TRUNCATE, IOCTL_DEVICE = 1 << 14, 1 << 15
# Removing and making entries of every kind, and moving them between folders: bits 4 to 13.
CHANGE_FOLDER = 0x3FF0
MAKE_DEVICES = 1 << 6 | 1 << 11
FILE_ONLY = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEVICE

READ = EXECUTE | READ_FILE | READ_DIR
WRITE = WRITE_FILE | TRUNCATE | CHANGE_FOLDER & ~MAKE_DEVICES
DEVICES = WRITE_FILE | TRUNCATE | IOCTL_DEVICE

# Every process of version 1 may move files only within one folder, which no ordinary command survives.
FIRST_WITH_MOVES, FIRST_WITH_TRUNCATE, FIRST_WITH_TCP, FIRST_WITH_IOCTL, FIRST_WITH_SCOPES = 2, 3, 4, 5, 6
ALL_TCP = 0b11
ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def version() -> int:
    """The kernel's Landlock version (ABI), 0 where it has none or has it switched off."""
    return max(_system_call(CREATE_RULESET, None, 0, CREATE_RULESET_VERSION), 0)


def handled_files(abi: int) -> int:
    """The bits of file access that a kernel of that version can refuse."""
    bits = (1 << 13) - 1
    for first, bit in ((FIRST_WITH_MOVES, 1 << 13), (FIRST_WITH_TRUNCATE, TRUNCATE), (FIRST_WITH_IOCTL, IOCTL_DEVICE)):
        bits |= bit if abi >= first else 0
    return bits


def restrict(allowed: dict[str, int], *, tcp: bool, abi: int | None = None) -> int:
    """Refuse from now on every file access but ``allowed`` (path: bits), for this thread and its children, for ever.

    ``tcp`` False refuses to bind and connect as well; signals and abstract sockets to processes outside are always
    refused. What the kernel's version does not know stays open. Returns that version: 0 means that nothing was
    restricted. Raises OSError when the kernel has Landlock and refuses. Paths that do not exist are left out.
    """
    abi = version() if abi is None else abi
    if abi == 0:
        return 0
    files = handled_files(abi)
    attributes = _Ruleset(files, 0 if tcp else ALL_TCP, ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 24 if abi >= FIRST_WITH_SCOPES else 16 if abi >= FIRST_WITH_TCP else 8
    ruleset = _checked(_system_call(CREATE_RULESET, ctypes.byref(attributes), size, 0))
    try:
        for path, bits in allowed.items():
            _allow(ruleset, path, bits & files)
        forbid_new_privileges()
        _checked(_system_call(RESTRICT_SELF, ruleset, 0))
    finally:
        os.close(ruleset)
    return abi


def forbid_new_privileges() -> None:
    """No program run from here on gains anything from a set-user-id bit; without it no restriction is accepted."""
    _checked(_libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def _allow(ruleset: int, path: str, bits: int) -> None:
    try:
        parent = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_folder = stat.S_ISDIR(os.fstat(parent).st_mode)
        rule = _PathBeneath(bits if is_folder else bits & FILE_ONLY, parent)
        _checked(_system_call(ADD_RULE, ruleset, RULE_PATH_BENEATH, ctypes.byref(rule), 0))
    finally:
        os.close(parent)


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _system_call(number: int, *arguments: object) -> int:
    libc = _libc()
    libc.syscall.restype = ctypes.c_long
    return int(libc.syscall(ctypes.c_long(number), *(_word(argument) for argument in arguments)))


def _word(argument: object) -> object:
    """Variadic arguments are passed as they are: a plain int would leave the upper half of its register undefined."""
    return ctypes.c_long(argument) if isinstance(argument, int) else argument


def _checked(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result
