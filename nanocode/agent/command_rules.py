"""Deny rules for commands: whether a shell command line runs what the user has forbidden, as far as text can tell.

A rule is a pattern of one simple command, its words set off by one blank; ``*`` stands for any text. A command line is
denied when any of its simple commands fits, in whatever part of it that stands: behind ``&&`` or a pipe, in a
substitution, behind `sudo`, `env` or `xargs`, in the text given to ``bash -c``. Where that cannot be told, the user is
asked. A script, an alias or a program that runs the same is not seen: rules catch what is written, the sandbox is the
wall.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from nanocode.agent.shell_words import UNKNOWN, Unreadable, Words, simple_commands

MAX_NESTING = 4
SHELLS = frozenset({"ash", "bash", "dash", "fish", "ksh", "sh", "zsh"})
# Programs that run their arguments as a command, some of them behind options of their own.
RUNNERS = SHELLS | frozenset(
    {".", "builtin", "busybox", "chroot", "chrt", "command", "coproc", "doas", "env", "eval", "exec", "find", "flock"}
    | {"ionice", "nice", "nohup", "nsenter", "parallel", "runuser", "script", "setarch", "setpriv", "setsid", "source"}
    | {"ssh", "stdbuf", "strace", "su", "sudo", "systemd-run", "taskset", "time", "timeout", "trap", "unshare", "watch"}
    | {"xargs"}
)
# These put more words behind it.
ADD_WORDS = frozenset({"parallel", "xargs"})
_WORD_ENDS = (" ", "/")
# A word with one of these may be a command line of its own.
_SHELL_TEXT = re.compile(r"[\s;|&()<>$`]")
_NEXT_TO_UNKNOWN = re.compile(f" *{UNKNOWN} *")


@dataclass(frozen=True)
class Judgement:
    """What a deny rule says of a command; ``why`` names the rule, or what keeps it from being told."""

    verdict: Literal["deny", "ask"]
    why: str


class _Line(NamedTuple):
    """A simple command as one text. ``anywhere``: every later word may begin a command as well; ``is_open``: more words
    follow that are not known.
    """

    text: str
    anywhere: bool = False
    is_open: bool = False


def judge(command: str, patterns: Sequence[str]) -> Judgement | None:
    """The first pattern that fits, else whether one may fit, else None."""
    if not patterns:
        return None
    if "*" in patterns:
        return Judgement("deny", "*")
    lines: dict[_Line, None] = {}  # each once, in order
    fault = ""
    try:
        for words in simple_commands(command):
            for line in _lines(words, 0):
                lines[line] = None
    except Unreadable as error:
        fault = str(error)
    for pattern in patterns:
        if any(_fits(pattern, line, certain=True) for line in lines):
            return Judgement("deny", pattern)
    if fault:
        return Judgement("ask", f"it cannot be read ({fault})")
    for pattern in patterns:
        if any(_fits(pattern, line, certain=False) for line in lines):
            return Judgement("ask", f"{pattern!r} may fit")
    return None


def _lines(words: Words, depth: int) -> Iterator[_Line]:
    """What a simple command runs: itself, and what it hands on to be run. Raises Unreadable."""
    name = words[0].rpartition("/")[2]
    yield _Line(" ".join(words))
    yield _Line(" ".join((name, *words[1:])), name in RUNNERS, name in ADD_WORDS)
    if UNKNOWN in name:
        raise Unreadable("the program's name is not known")
    if name not in RUNNERS:
        return
    if name in SHELLS and ("-s" in words or all(word.startswith("-") for word in words[1:])):
        raise Unreadable(f"what {name} reads is not known")
    texts = [word for word in words[1:] if _SHELL_TEXT.search(word)]
    for text in [*texts, *([" ".join(words[1:])] if name == "eval" else [])]:
        if UNKNOWN in text:
            raise Unreadable(f"what {name} runs is not known")
        if depth == MAX_NESTING:
            raise Unreadable("commands within commands within commands")
        for found in simple_commands(text):
            yield from _lines(found, depth + 1)


def _fits(pattern: str, line: _Line, certain: bool) -> bool:
    """Whether a line fits whatever stands in place of UNKNOWN (``certain``: only ``*`` covers it), or may fit.

    Walks the line once with the set of places in the pattern that can be reached, one bit each.
    """
    prefix = pattern.removesuffix(":*")
    if prefix != pattern:
        return _fits(prefix, line, certain) or _fits(f"{prefix} *", line, certain)
    literal, loops = "", 0
    for character in pattern:
        if character == "*":
            loops |= 1 << len(literal)
        else:
            literal += character
    steps: dict[str, int] = {}
    for place, character in enumerate(literal):
        steps[character] = steps.get(character, 0) | 1 << place
    end, reached = 1 << len(literal), 1
    # What is unknown may be blanks as well, or nothing.
    for character in line.text if certain else _NEXT_TO_UNKNOWN.sub(UNKNOWN, line.text):
        if character == UNKNOWN and not certain:
            first = 1 if line.anywhere else reached & -reached
            reached = (end << 1) - first if first else 0
        else:
            reached = (reached & steps.get(character, 0)) << 1 | (reached & loops)
        if line.anywhere and character in _WORD_ENDS:
            reached |= 1
    return bool(reached if line.is_open and not certain else reached & end)
