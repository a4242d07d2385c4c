"""Seccomp: system calls that no command of an agent needs are refused before the kernel looks at them.

Namespaces hide files, processes and the network, but not the kernel's own surface, and not what has no namespace: the
session keyring is inherited from whoever started the agent, and sockets of some families lead to the host whatever the
network namespace. A set-user-id bit on a file in the workspace, made by a command, would be honoured outside.

The filter is built here and installed by bubblewrap. Call numbers: the kernel's ``syscall_64.tbl`` and
``asm-generic/unistd.h``; classic BPF: ``linux/filter.h``; the rule on mode bits is that of Nix's sandbox.
"""

from __future__ import annotations

import errno
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

AVAILABLE = Path("/proc/sys/kernel/seccomp/actions_avail")
LOAD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, JUMP_IF_BITS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET, ARGUMENTS_OFFSET, ARGUMENT_BYTES = 0, 4, 16, 8
X32_BIT = 0x40000000
# struct sock_filter: code, jump if true, jump if false, value.
Instruction = tuple[int, int, int, int]
INSTRUCTION = struct.Struct("<HBBI")

# io_uring carries out calls that a filter never sees, as openat2 hides its mode; the rest is the new mount interface.
COMMON = (*range(425, 434), 437, 442)
# name: (x86_64, aarch64)
REFUSED = {
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_by_handle_at": (304, 265),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "quotactl": (179, 60),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "syslog": (103, 116),
    "kcmp": (312, 272),
    "vhangup": (153, 58),
    # Files without a name are memory that no limit counts.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
}


class ModeCall(NamedTuple):
    """A call that sets mode bits: its numbers (None: not on that machine), the argument with the mode, with flags."""

    numbers: tuple[int | None, int | None]
    mode: int
    flags: int | None = None


SET_ID_BITS = 0o6000
# Without one of O_CREAT and O_TMPFILE the mode is not looked at, and may hold anything.
CREATING_FLAGS = 0x40 | 0x400000
MODE_CALLS = (
    ModeCall((90, None), 1),
    ModeCall((91, 52), 1),
    ModeCall((268, 53), 2),
    ModeCall((452, 452), 2),
    ModeCall((2, None), 2, flags=1),
    ModeCall((85, None), 1),
    ModeCall((257, 56), 3, flags=2),
    ModeCall((133, None), 1),
    ModeCall((259, 33), 2),
)
SOCKET = (41, 198)
# Unix, IPv4, IPv6, and netlink, from which libraries learn the interfaces.
FAMILIES = (1, 2, 10, 16)
IOCTL = (16, 29)
# TIOCSTI and TIOCLINUX put text into a terminal as if it had been typed.
TYPING = (0x5412, 0x541C)

# machine: (AUDIT_ARCH value, column above)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def available_program() -> bytes | None:
    """The filter for this machine; None where the kernel takes none or the call numbers are not known."""
    return program(os.uname().machine) if AVAILABLE.exists() else None


def program(machine: str) -> bytes | None:
    """The filter as the kernel takes it; None for a machine whose call numbers are not known here.

    Refused calls fail with EPERM, sockets of other families with EAFNOSUPPORT, calls of another architecture (32-bit
    programs), whose numbers mean something else, with ENOSYS.
    """
    if machine not in MACHINES:
        return None
    architecture, column = MACHINES[machine]
    foreign = _fail(errno.ENOSYS)
    lines = [_load(ARCHITECTURE_OFFSET), (JUMP_IF_EQUAL, 1, 0, architecture), foreign]
    lines += [_load(NUMBER_OFFSET), (JUMP_IF_AT_LEAST, 0, 1, X32_BIT), foreign]
    for number in sorted({*COMMON, *(numbers[column] for numbers in REFUSED.values())}):
        lines += _when(number, [_fail(errno.EPERM)])
    for call in MODE_CALLS:
        if (of_mode := call.numbers[column]) is not None:
            lines += _when(of_mode, _mode_rule(call))
    lines += _when(SOCKET[column], _among(0, FAMILIES, inside=_ALLOW, outside=_fail(errno.EAFNOSUPPORT)))
    lines += _when(IOCTL[column], _among(1, TYPING, inside=_fail(errno.EPERM), outside=_ALLOW))
    return b"".join(INSTRUCTION.pack(*line) for line in [*lines, _ALLOW])


_ALLOW: Instruction = (RETURN, 0, 0, ALLOW)


def _fail(code: int) -> Instruction:
    return RETURN, 0, 0, FAIL | code


def _load(offset: int) -> Instruction:
    return LOAD, 0, 0, offset


def _argument(index: int) -> Instruction:
    """The lower half of an argument: all that modes, flags and families use."""
    return _load(ARGUMENTS_OFFSET + ARGUMENT_BYTES * index)


def _when(number: int, rule: Sequence[Instruction]) -> list[Instruction]:
    """``rule`` for the call of that number; it must end in a return, and every other call jumps over it."""
    return [(JUMP_IF_EQUAL, 0, len(rule), number), *rule]


def _mode_rule(call: ModeCall) -> list[Instruction]:
    mode = [_argument(call.mode), (JUMP_IF_BITS, 0, 1, SET_ID_BITS), _fail(errno.EPERM), _ALLOW]
    if call.flags is None:
        return mode
    return [_argument(call.flags), (JUMP_IF_BITS, 1, 0, CREATING_FLAGS), _ALLOW, *mode]


def _among(index: int, values: Sequence[int], inside: Instruction, outside: Instruction) -> list[Instruction]:
    tests = [line for value in values for line in ((JUMP_IF_EQUAL, 0, 1, value), inside)]
    return [_argument(index), *tests, outside]
