"""The same attacks as an ordinary user, when the suite is run by root: what root holds, a user may not hold."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from nanocode.agent import profile, unprivileged
from nanocode.agent.sandbox import find_bwrap

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[2]


@pytest.mark.slow
def test_the_attacks_are_held_as_an_ordinary_user(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("not root: this run is the one of an ordinary user")
    needed = [Path(sys.base_prefix).resolve(), Path(sys.prefix).resolve(), find_bwrap(), ROOT]
    closed = {folder for path in needed if (folder := profile.closed_ancestor(path))}
    closed.add(profile.closed_ancestor(tmp_path) or tmp_path)
    settings = [f"own={folder}" for folder in closed if not closed.intersection(folder.parents)]
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from nanocode.agent.unprivileged import main; main()"
    tests = ["-m", "pytest", str(FOLDER), "-q", "-o", "addopts=", "-p", "no:cacheprovider"]
    settings += [f"need={path}" for path in needed]
    second = [sys.executable, *tests, "--basetemp", str(tmp_path / "second")]
    ended = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, str(ROOT), *settings, "--", *second],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-2000:]
    passed = re.search(r"([0-9]+) passed", ended.stdout)
    assert passed is not None and int(passed[1]) >= 200, ended.stdout[-2000:]


def test_giving_up_root_is_complete(tmp_path: Path) -> None:
    """CWE-273: a user id dropped without the groups, or without the saved id, comes back."""
    if os.geteuid() != 0:
        pytest.skip("not root: there is nothing to give up")
    command = [
        "/bin/sh",
        "-c",
        "grep -E '^(Uid|Gid|Groups|CapEff|CapPrm)' /proc/self/status; cd {folder}; echo x > made; touch /etc/x",
    ]
    command[-1] = command[-1].format(folder=tmp_path)
    closed = profile.closed_ancestor(tmp_path) or tmp_path
    package = str(ROOT)
    program = f"import sys; sys.path.insert(0, {package!r}); from nanocode.agent.unprivileged import main; main()"
    start = [str(profile.interpreter()), "-I", "-S", "-c", program, f"own={closed}", f"need={tmp_path}", "--"]
    ended = subprocess.run([*start, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
    uid = str(unprivileged.UNPRIVILEGED_UID)
    rows = [line.split() for line in ended.stdout.splitlines()]
    zero = "0" * 16
    assert rows == [["Uid:", *[uid] * 4], ["Gid:", *[uid] * 4], ["Groups:"], ["CapPrm:", zero], ["CapEff:", zero]]
    assert "Permission denied" in ended.stderr and not Path("/etc/x").exists()
    made = (tmp_path / "made").stat()
    assert (made.st_uid, made.st_gid) == (0, 0), "what it makes belongs to root on disk"
