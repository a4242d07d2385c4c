"""`nanocode agent` on a real pseudo-terminal: the question is seen in full, and only a yes lets the edit through."""

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import sys, types, typer
from nanocode.conversation import Message, ToolCall

class Model:
    def respond(self, conversation):
        if conversation[-1].role == "user":
            return Message("assistant", "", ToolCall("Edit", {"file_path": "a.py", "new_string": "x = 1"}))
        return Message("assistant", "it says " + conversation[-1].content)

module = types.ModuleType("nanocode.cli.model_loading")
module.load_responder = lambda *arguments: Model()
sys.modules[module.__name__] = module
from nanocode.cli.agent import agent
application = typer.Typer()
application.command()(agent)
application()
"""
QUESTION = "allow Edit? [y/N/always]"


class Person:
    """Types into a terminal and waits for what appears on it."""

    def __init__(self, folder: Path) -> None:
        self.keyboard, screen = pty.openpty()
        repository = str(Path(__file__).parents[2])
        environment = os.environ | {"HOME": str(folder), "PYTHONPATH": repository, "TERM": "dumb"}
        command = [sys.executable, "-c", PROGRAM, "--workspace", str(folder / "work")]
        self.process = subprocess.Popen(command, stdin=screen, stdout=screen, stderr=screen, env=environment)
        os.close(screen)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 20
        while text not in self.seen:
            assert time.monotonic() < deadline, f"no {text!r} in {self.seen!r}"
            if select.select([self.keyboard], [], [], 0.1)[0]:
                self.seen += os.read(self.keyboard, 4_096).decode("utf-8", "replace")
        self.seen = self.seen.partition(text)[2]

    def type(self, text: str) -> None:
        os.write(self.keyboard, f"{text}\r".encode())


@pytest.mark.parametrize(("answer", "result"), [("", "the user said no"), ("y", "created a.py, 1 line")])
def test_an_edit_is_asked_for(tmp_path: Path, answer: str, result: str) -> None:
    (tmp_path / "work").mkdir()
    person = Person(tmp_path)
    try:
        person.wait_for("ask>")
        person.type("make it")
        person.wait_for(QUESTION)
        person.type(answer)
        person.wait_for(result)
        person.wait_for("ask>")
        person.type("/quit")
        assert person.process.wait(10) == 0
    finally:
        person.process.kill()
        person.process.wait()
        os.close(person.keyboard)
    assert (tmp_path / "work" / "a.py").exists() == (answer == "y")
