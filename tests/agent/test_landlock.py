"""What a process gives up is gone, for it and its children; what an older kernel does not know is not asked of it."""

import subprocess
import sys
from pathlib import Path

import pytest

from nanocode.agent import landlock

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux; there it must work")

ROOT = Path(__file__).resolve().parents[2]


def confined(code: str, rules: str, tcp: bool = True, abi: int | None = None) -> list[str]:
    """Words that ``code`` prints in a process that has kept only ``rules``."""
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "import os, socket, subprocess\n"
        "from nanocode.agent.landlock import *\n"
        "def attempt(action):\n"
        "    try: action(); print('done')\n"
        "    except OSError as error: print(error.errno)\n"
        # Names of hosts are encoded by a module that is only imported then.
        "socket.getaddrinfo('127.0.0.1', 9)\n"
        f"restrict({rules}, tcp={tcp}, abi={abi})\n{code}"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("open", "shut"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("text")
    (tmp_path / "open" / "link").symlink_to("../shut/f")
    return tmp_path


def test_the_kernel_here_has_it() -> None:
    assert landlock.version() >= landlock.FIRST_WITH_MOVES


def test_only_what_is_named_stays_open(folder: Path) -> None:
    rules = f"{{{str(folder / 'open')!r}: READ}}"
    code = f"os.chdir({str(folder / 'open')!r})\n" + "".join(
        f"attempt(lambda: {action})\n"
        for action in (
            "open('f').read()",
            "os.listdir('.')",
            "open('f', 'w')",
            "open('new', 'w')",
            "os.unlink('f')",
            "os.truncate('f', 0)",
            "open('../shut/f')",
            "open('link')",
            "open('/etc/passwd')",
            "os.listdir('/')",
        )
    )
    assert confined(code, rules) == ["done", "done", *["13"] * 8]
    assert (folder / "open" / "f").read_text() == "text"


def test_children_inherit_it_and_cannot_get_rid_of_it(folder: Path) -> None:
    rules = "{'/usr': READ, '/lib': READ, '/lib64': READ, '/bin': READ, '/dev': READ | DEVICES}"
    code = (
        f"print(subprocess.run(['/bin/cat', {str(folder / 'shut' / 'f')!r}], stderr=-1).returncode)\n"
        f"restrict({{'/': READ | WRITE}}, tcp=True)\nattempt(lambda: open({str(folder / 'shut' / 'f')!r}))\n"
    )
    assert confined(code, rules) == ["1", "13"]


def test_writing_moving_between_folders_and_devices(folder: Path) -> None:
    rules = f"{{{str(folder)!r}: READ | WRITE, '/dev': READ | DEVICES}}"
    code = (
        f"os.chdir({str(folder)!r})\n"
        "attempt(lambda: os.rename('open/f', 'shut/g'))\nattempt(lambda: os.mkdir('d'))\n"
        "attempt(lambda: open('/dev/null', 'w').write('x'))\nattempt(lambda: open('/dev/shm/nanocode-x', 'w'))\n"
    )
    assert confined(code, rules) == ["done", "done", "done", "13"]


@pytest.mark.parametrize("abi", [1, 2, 3, 4, 5, 6])
def test_an_older_version_is_asked_for_what_it_knows(folder: Path, abi: int) -> None:
    code = (
        f"attempt(lambda: open({str(folder / 'shut' / 'f')!r}))\n"
        "attempt(lambda: socket.create_connection(('127.0.0.1', 9), 1))\n"
    )
    file, network = confined(code, "{}", tcp=False, abi=abi)
    assert file == "13" and network == ("13" if abi >= landlock.FIRST_WITH_TCP else "111")


def test_without_landlock_nothing_is_restricted(folder: Path) -> None:
    assert confined(f"attempt(lambda: open({str(folder / 'shut' / 'f')!r}))", "{}", abi=0) == ["done"]


def test_a_path_that_is_not_there_is_left_out(folder: Path) -> None:
    rules = f"{{'/nonexistent': READ, {str(folder / 'open' / 'f')!r}: READ | WRITE}}"
    assert confined(f"attempt(lambda: open({str(folder / 'open' / 'f')!r}, 'r+'))", rules) == ["done"]
