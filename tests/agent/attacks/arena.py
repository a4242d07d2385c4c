"""What the attacks share: a workspace with secrets all around it, and nothing of them may ever come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from nanocode.agent.processes import Completed
from nanocode.agent.sandbox import Limits, Sandbox
from nanocode.agent.tools import Toolbox
from nanocode.conversation import ToolCall

SECRET = "PLANTED-SECRET-51966"
KEY_NAME = "PLANTED_API_KEY"
LIMITS = Limits(wall_seconds=8.0)


@dataclass(frozen=True)
class Arena:
    """``root`` is the workspace; ``outside`` beside it holds secret.txt, as does ``evil``, which shares its prefix."""

    root: Path
    outside: Path
    evil: Path
    toolbox: Toolbox
    sandbox: Sandbox

    def use(self, name: str, **arguments: str) -> str:
        """The text of one call's result."""
        return self.toolbox.execute(ToolCall(name, arguments)).text

    def shell(self, command: str, limits: Limits = LIMITS, writable: bool = True) -> Completed:
        """A command in the sandbox, with its bounds at hand."""
        return self.sandbox.run(command, self.root, limits, writable)

    def python(self, code: str) -> str:
        """What a Python program prints in the sandbox, errors included."""
        (self.root / "attack.py").write_text(code)
        completed = self.shell("python attack.py")
        assert not completed.stopped, completed
        return completed.output


@dataclass(frozen=True)
class Attack:
    """One attack as a row of a table: what is tried, what is seen instead, and why anybody would try."""

    name: str
    why: str
    attempt: str
    seen: str
    prepare: Callable[[Arena], object] = lambda arena: None

    def __str__(self) -> str:
        return self.name


def snapshot(folder: Path) -> Mapping[str, bytes | str]:
    """Content of every file below, or what else stands there, with its mode."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        mode = oct(path.lstat().st_mode)
        name = f"{path.relative_to(folder)} {mode}"
        found[name] = path.read_bytes() if path.is_file() and not path.is_symlink() else "no file"
    return found
