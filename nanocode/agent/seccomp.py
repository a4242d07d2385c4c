"""Seccomp: system calls that no command of an agent needs are refused before the kernel looks at them.

Namespaces hide files, processes and the network, but not the kernel's own surface, and not what has no namespace: a
process inherits the session keyring of whoever started it. The filter is built here and installed by bubblewrap. Call
numbers: the kernel's ``syscall_64.tbl`` and ``asm-generic/unistd.h``.
"""

from __future__ import annotations

import errno
import os
import struct
from pathlib import Path

AVAILABLE = Path("/proc/sys/kernel/seccomp/actions_avail")
LOAD_WORD, JUMP_IF_EQUAL, JUMP_IF_AT_LEAST, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, FAIL = 0x7FFF0000, 0x00050000
NUMBER_OFFSET, ARCHITECTURE_OFFSET = 0, 4
X32_BIT = 0x40000000
# struct sock_filter: code, jump if true, jump if false, value.
INSTRUCTION = struct.Struct("<HBBI")

# New mount interface, and io_uring, whose rings carry out calls that a filter never sees: the same everywhere.
COMMON = (*range(425, 434), 442)
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
}
# machine: (AUDIT_ARCH value, column above)
MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


def program(machine: str) -> bytes | None:
    """The filter as the kernel takes it; None for a machine whose call numbers are not known here.

    Refused calls fail with EPERM; those of another architecture (32-bit programs), whose numbers mean something else,
    with ENOSYS.
    """
    if machine not in MACHINES:
        return None
    architecture, column = MACHINES[machine]
    refused = sorted({*COMMON, *(numbers[column] for numbers in REFUSED.values())})
    count = len(refused)
    # Jumps count the instructions that are skipped; the three returns stand at the end.
    lines = [
        (LOAD_WORD, 0, 0, ARCHITECTURE_OFFSET),
        (JUMP_IF_EQUAL, 0, count + 4, architecture),
        (LOAD_WORD, 0, 0, NUMBER_OFFSET),
        (JUMP_IF_AT_LEAST, count + 2, 0, X32_BIT),
    ]
    lines += [(JUMP_IF_EQUAL, count - index, 0, number) for index, number in enumerate(refused)]
    lines += [(RETURN, 0, 0, ALLOW), (RETURN, 0, 0, FAIL | errno.EPERM), (RETURN, 0, 0, FAIL | errno.ENOSYS)]
    return b"".join(INSTRUCTION.pack(*line) for line in lines)


def available_program() -> bytes | None:
    """The filter for this machine; None where the kernel takes none or the call numbers are not known."""
    return program(os.uname().machine) if AVAILABLE.exists() else None
