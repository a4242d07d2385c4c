"""`nanocode agent` on a real pseudo-terminal: what is asked is seen in full, and Ctrl-C stops what it should."""

import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# The words of a prompt choose what this model does; everything else is the command's own.
PROGRAM = """
import time, typer
from nanocode.agent.terminal_commands import Model
from nanocode.cli import agent as command
from nanocode.conversation import Message, ToolCall

class Words:
    def stream(self, conversation):
        last = conversation[-1].content
        if last == "make it slowly":
            time.sleep(1)
        if last.startswith("make it"):
            yield Message("assistant", "", ToolCall("Edit", {"file_path": "a.py", "new_string": "x = 1\\n"}))
        elif last.startswith("run "):
            yield Message("assistant", "", ToolCall("Bash", {"command": last[4:]}))
        elif last == "think":
            yield "I am "
            time.sleep(60)
        elif last == "list":
            yield "Here is **what** there is:\\n\\n"
            yield "- one\\n- two\\n"
            yield Message("assistant", "Here is **what** there is:\\n\\n- one\\n- two\\n")
        else:
            yield Message("assistant", f"it says {last}")
    respond = None

class Source:
    first = None
    def load(self, name):
        return Model(name or "words@1", Words(), context_tokens=1000, count=lambda conversation: 250)
    def names(self):
        return ["words@1", "words@2"]

command.chosen_source = lambda request: Source()
application = typer.Typer()
application.command()(command.agent)
application()
"""
# A terminal answers this; only then is there a status line.
WHERE_IS_THE_CURSOR = "\x1b[6n"
ESCAPES = re.compile(r"\x1b(?:\[[0-9;?<>=]*[a-zA-Z]|\][^\x07]*\x07|[()=>].?|.)")


def sit_down() -> None:
    """Take the terminal at descriptor 0, and hear Ctrl-C even where the tests were started by what ignores it."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))
    signal.signal(signal.SIGINT, signal.SIG_DFL)


class Person:
    """Types into a terminal and waits for what appears on it."""

    def __init__(self, folder: Path, kind: str, *arguments: str) -> None:
        self.work = folder / "work"
        self.work.mkdir()
        self.keyboard, screen = pty.openpty()
        termios.tcsetwinsize(screen, (30, 100))
        repository = str(Path(__file__).parents[2])
        environment = os.environ | {"XDG_STATE_HOME": str(folder), "PYTHONPATH": repository, "TERM": kind}
        command = [sys.executable, "-c", PROGRAM, "--workspace", str(self.work), *arguments]
        # A session of its own, so that Ctrl-C comes from this terminal.
        self.process = subprocess.Popen(
            command,
            stdin=screen,
            stdout=screen,
            stderr=screen,
            env=environment,
            start_new_session=True,
            preexec_fn=sit_down,
        )
        os.close(screen)
        self.raw = self.seen = ""

    def wait_for(self, text: str) -> str:
        """What came before ``text``, without escape sequences."""
        deadline = time.monotonic() + 30
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self.keyboard], [], [], 0.1)[0]:
                try:
                    read = os.read(self.keyboard, 4_096).decode("utf-8", "replace")
                except OSError as error:
                    raise AssertionError(f"the program ended: no {text!r} in {self.seen!r}") from error
                for _ in range(read.count(WHERE_IS_THE_CURSOR)):
                    self.type("\x1b[1;1R", end="")
                self.raw += read
                self.seen = ESCAPES.sub("", self.raw)
        before, _, self.seen = self.seen.partition(text)
        self.raw = self.seen
        return before

    def type(self, text: str, end: str = "\r") -> None:
        os.write(self.keyboard, f"{text}{end}".encode())

    def leave(self) -> int:
        self.type("/quit")
        return self.process.wait(20)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.keyboard)


@pytest.fixture
def terminal(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Person]:
    """``dumb`` or ``xterm``, with further arguments of the command."""
    kind, *arguments = getattr(request, "param", ("xterm",))
    person = Person(tmp_path, kind, *arguments)
    yield person
    person.close()


@pytest.mark.parametrize("terminal", [("dumb",), ("xterm",)], indirect=True)
@pytest.mark.parametrize(("answer", "result"), [("", "the user said no"), ("y", "created a.py, 1 line")])
def test_an_edit_is_asked_for(terminal: Person, answer: str, result: str) -> None:
    terminal.wait_for("ask>")
    terminal.type("make it")
    assert "1 + x = 1" in terminal.wait_for("allow Edit? [y/N/always]")
    terminal.type(answer)
    terminal.wait_for(result)
    terminal.wait_for("ask>")
    assert terminal.leave() == 0
    assert (terminal.work / "a.py").exists() == (answer == "y")


def test_a_dialogue_with_markdown_status_completion_and_commands(terminal: Person) -> None:
    terminal.wait_for("context 250 of 1000 tokens (25 %)")
    terminal.type("list")
    terminal.wait_for("Here is what there is:")
    terminal.wait_for("• two")
    terminal.wait_for("ask>")
    terminal.type("/mod", end="\t")
    terminal.wait_for("/model")
    terminal.type("\x03/model words@2")
    terminal.wait_for("model words@2")
    terminal.wait_for("ask>")
    terminal.type("/mode auto")
    terminal.wait_for("mode auto")
    terminal.wait_for("auto>")
    terminal.type("one\\")
    terminal.type("two")
    terminal.wait_for("it says one")
    terminal.wait_for("auto>")
    assert terminal.leave() == 0


@pytest.mark.parametrize("terminal", [("xterm", "--mode", "auto")], indirect=True)
@pytest.mark.parametrize(("prompt", "sign"), [("think", "I am"), ("run echo up; sleep 60", "running Bash")])
def test_ctrl_c_stops_the_turn_not_the_program(terminal: Person, prompt: str, sign: str) -> None:
    terminal.wait_for("auto>")
    terminal.type(prompt)
    terminal.wait_for(sign)
    started = time.monotonic()
    os.killpg(terminal.process.pid, signal.SIGINT)
    terminal.wait_for("stopped; the model forgets this turn")
    assert time.monotonic() - started < 20, "a running command is killed, not waited for"
    terminal.wait_for("auto>")
    terminal.type("hello")
    terminal.wait_for("it says hello")
    assert terminal.leave() == 0


def test_keys_pressed_before_a_question_do_not_answer_it(terminal: Person) -> None:
    terminal.wait_for("ask>")
    terminal.type("make it slowly")
    terminal.wait_for("thinking")
    terminal.type("y")
    terminal.wait_for("allow Edit?")
    terminal.type("")
    terminal.wait_for("the user said no")
    assert not (terminal.work / "a.py").exists()


def test_ctrl_c_at_a_question_is_no_and_twice_on_an_empty_line_leaves(terminal: Person) -> None:
    terminal.wait_for("ask>")
    terminal.type("make it")
    terminal.wait_for("allow Edit?")
    terminal.type("\x03", end="")
    terminal.wait_for("the user said no")
    terminal.wait_for("stopped;")
    terminal.wait_for("ask>")
    terminal.type("half a line\x03\x03", end="")
    terminal.wait_for("Ctrl-C again leaves")
    terminal.wait_for("ask>")
    terminal.type("\x03", end="")
    assert terminal.process.wait(20) == 0 and not (terminal.work / "a.py").exists()


@pytest.mark.parametrize("terminal", [("xterm", "--unsafe")], indirect=True)
def test_unsafe_shows_and_ctrl_d_leaves(terminal: Person) -> None:
    terminal.wait_for("UNSAFE ask>")
    terminal.type("\x04", end="")
    assert terminal.process.wait(20) == 0


@pytest.mark.parametrize("terminal", [("xterm", "-p", "make it")], indirect=True)
def test_ctrl_c_at_a_question_ends_a_one_shot(terminal: Person) -> None:
    terminal.wait_for("allow Edit?")
    terminal.type("\x03", end="")
    terminal.wait_for("the user said no")
    terminal.wait_for("stopped; what was edited stays")
    assert terminal.process.wait(20) == 1
