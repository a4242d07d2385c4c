"""Who holds a lease: a name for this process, and whether the process behind such a name is certainly gone.

A name holds the machine's boot id, the process namespace, the process id and the time the process started. A process is
known to be dead only to one that sees the same processes: same boot, same namespace, and the number is free or belongs
to a process that started at another time. Where that cannot be told (another machine, another container, no /proc),
nobody is known to be dead, and a lease has to expire.
"""

from __future__ import annotations

import os
import platform
import re
import uuid
from pathlib import Path
from typing import NamedTuple

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


class Owner(NamedTuple):
    """The parts of a name. `started` counts clock ticks since boot; `nonce` tells holders in one process apart."""

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    nonce: str

    def __str__(self) -> str:
        return "/".join(str(part) for part in self)


def this_process() -> str:
    """A new name for this process: two calls give two holders."""
    pid = os.getpid()
    host = _UNSAFE.sub("-", platform.node()) or "unknown"
    return str(Owner(host, _boot(), _namespace(), pid, _started(pid) or 0, uuid.uuid4().hex[:12]))


def describe(name: str) -> str:
    """The owner for people to read."""
    owner = _parse(name)
    return f"process {owner.pid} on {owner.host}" if owner else name


def is_dead(name: str) -> bool:
    """Whether the process is certainly gone; False where nobody can tell."""
    owner = _parse(name)
    if owner is None or not owner.started or not owner.boot or not owner.namespace:
        return False
    if (owner.boot, owner.namespace) != (_boot(), _namespace()):
        return False
    try:
        os.kill(owner.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it exists and is somebody else's
    started = _started(owner.pid)
    return started is not None and started != owner.started


def _parse(name: str) -> Owner | None:
    parts = name.split("/")
    if len(parts) != len(Owner._fields) or not (parts[3].isdecimal() and parts[4].isdecimal()):
        return None
    host, boot, namespace, pid, started, nonce = parts
    return Owner(host, boot, namespace, int(pid), int(started), nonce)


def _boot() -> str:
    try:
        return _BOOT.read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _namespace() -> str:
    try:
        return _UNSAFE.sub("-", str(_NAMESPACE.readlink()))
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When a process started; 0 for one that ended and was not buried yet, None where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")[2].split()
    except OSError:
        return None
    return 0 if fields[0] in "ZX" else int(fields[19])
