"""The parts that every family is built from: phrasings that work both ways, voices, and readers of tool results."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from nanocode.conversation import Message, ToolCall
from nanocode.tasks.task import Consent, Expectation, Register
from nanocode.tasks.words import Names

_NAME, _CONSTANT, _PATH = r"[a-z]+_[a-z]+", r"[A-Z]+_[A-Z]+", r"[a-z_/]+\.py"
FIELD_PATTERNS: Mapping[str, str] = {
    "name": _NAME,
    "new_name": _NAME,
    "constant": _CONSTANT,
    "new_constant": _CONSTANT,
    "path": _PATH,
    "test": _PATH,
    "value": r"\d{1,3}",
    "module": r"[a-z]+",
}


class NotRecognised(ValueError):
    """The expert knows no family that asks like this."""


@dataclass(frozen=True)
class Phrasing:
    """One way to ask. The same template writes the prompt and reads it back.

    `held_out` keeps it for evaluation; `choices` closes the set of values for fields that are not names or numbers.
    """

    variant: str
    template: str
    held_out: bool = False
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def fill(self, fields: Mapping[str, str]) -> str:
        return self.template.format(**fields)

    def match(self, prompt: str) -> dict[str, str] | None:
        found = self._pattern.fullmatch(prompt.strip())
        return found.groupdict() if found else None

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        parts = re.split(r"\{(\w+)\}", self.template)
        literals, fields = parts[::2], parts[1::2]
        pattern = re.escape(literals[0])
        for name, literal in zip(fields, literals[1:], strict=True):
            closed = "|".join(re.escape(value) for value in self.choices.get(name, ()))
            pattern += f"(?P<{name}>{closed or FIELD_PATTERNS[name]}){re.escape(literal)}"
        return re.compile(pattern)


@dataclass(frozen=True)
class Scene:
    """What a family makes of one phrasing: the prompt's fields, the workspace, and what must hold at the end.

    The last three are a `Task`'s.
    """

    fields: Mapping[str, str]
    files: Mapping[str, str]
    expect: Expectation
    consent: Consent = "all"
    meanwhile: Mapping[str, str] = field(default_factory=dict)
    otherwise: Expectation | None = None


@dataclass(frozen=True)
class Step:
    """One call the agent made and what the tool answered."""

    call: ToolCall
    result: str

    @property
    def failed(self) -> bool:
        return self.result.startswith("error: ")


@dataclass(frozen=True)
class Lines:
    """The same thing said in both registers, several times each."""

    stock: tuple[str, ...]
    soul: tuple[str, ...]


@dataclass(frozen=True)
class Voice:
    """Chooses the words: which register, and which of its phrasings."""

    register: Register
    choice: int

    def say(self, lines: Lines, /, **facts: str) -> Message:
        return Message("assistant", self._words(lines, facts))

    def call(self, lines: Lines, tool: str, arguments: Mapping[str, str], /, **facts: str) -> Message:
        return Message("assistant", self._words(lines, facts), ToolCall(tool, dict(arguments)))

    def _words(self, lines: Lines, facts: Mapping[str, str]) -> str:
        options = lines.stock if self.register == "stock" else lines.soul
        return options[self.choice % len(options)].format(**facts)


Build = Callable[[Phrasing, Names, random.Random], Scene]
Respond = Callable[[Mapping[str, str], Sequence[Step], Voice], Message]


@dataclass(frozen=True)
class Family:
    """A kind of task: `build` invents one, `respond` is the expert's next message, `weight` its share in a mixture.

    `respond` gets the fields read from the prompt (``variant`` among them) and the calls made since.
    """

    name: str
    weight: float
    phrasings: tuple[Phrasing, ...]
    build: Build
    respond: Respond


@dataclass(frozen=True)
class Match:
    """One line of a Grep result."""

    path: str
    line: str
    text: str


def grep_matches(result: str) -> list[Match]:
    """The ``path:line:text`` lines of a Grep result; none for ``no matches``."""
    found = [re.fullmatch(r"([^:\n]+):(\d+):(.*)", line) for line in result.split("\n")]
    return [Match(*match.groups()) for match in found if match]


def shown_lines(result: str) -> list[str]:
    """The file's lines in a Read result, numbers removed."""
    found = [re.fullmatch(r" *\d+→(.*)", line) for line in result.split("\n")]
    return [match.group(1) for match in found if match]


def constant_line(lines: Sequence[str], constant: str) -> str | None:
    """The line ``CONSTANT = value`` of a module."""
    return next((line for line in lines if line.startswith(f"{constant} = ")), None)


def function_source(name: str, body: str, argument: str = "n") -> str:
    return f"def {name}({argument}):\n    return {body}\n"


def other_numbers(text: str, keep: Sequence[str]) -> tuple[str, ...]:
    """The numbers in a file that would be a wrong answer."""
    return tuple(sorted(set(re.findall(r"\b\d+\b", text)) - set(keep)))
