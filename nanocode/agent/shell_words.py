"""The simple commands in a shell command line, read without running it.

Read are words, quotes, escapes, separators, redirections, comments, reserved words and substitutions, whose commands
are listed too. What only a running shell knows (variables, output of commands, names of files) stands as `UNKNOWN` in a
word. Everything else that could hide a command raises `Unreadable`: nothing is guessed (POSIX Shell Command Language,
2.2 to 2.10; the Bash manual for the rest).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

UNKNOWN = "\0"
MAX_CHARACTERS = 10_000
MAX_NESTING = 8
# In front of a command they are no part of it.
RESERVED = frozenset({"!", "if", "then", "elif", "else", "fi", "while", "until", "do", "done", "esac", "time"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=", re.ASCII)
_VARIABLE = re.compile(r"\w+|[@*#?$!-]|\{(\w+|[@*#?$!-])\}", re.ASCII)
_REDIRECTION = re.compile(r"<<<|<>|<&|>>|>&|>\||[<>]")

Words = tuple[str, ...]


class Unreadable(ValueError):
    """Shell text of which cannot be told what it runs; the message says why."""


def simple_commands(text: str) -> Iterator[Words]:
    """The words of each simple command, without assignments, reserved words and redirections.

    Raises Unreadable behind those that stand before what cannot be read.
    """
    reader, fault = _Reader(text[:MAX_CHARACTERS]), None
    try:
        reader.read()
    except Unreadable as error:
        fault = error
    yield from (words for found in reader.commands if (words := _without_prefix(found)))
    if fault is not None:
        raise fault
    if len(text) > MAX_CHARACTERS:
        raise Unreadable(f"it has more than {MAX_CHARACTERS} characters")


def _without_prefix(words: list[str]) -> Words:
    start = 0
    while start < len(words) and (words[start] in RESERVED or _ASSIGNMENT.match(words[start])):
        start += 1
    return tuple(words[start:])


@dataclass
class _Command:
    """A simple command as far as it has been read. ``word`` is None between words."""

    words: list[str] = field(default_factory=list)
    word: str | None = None
    quoted: bool = False
    expands: bool = False
    is_target: bool = False
    nesting: int = 0

    def add(self, text: str) -> None:
        self.word = (self.word or "") + text

    def end_word(self) -> bool:
        """Whether the word ends the command before it: a brace that stands alone groups."""
        word, target, is_brace = self.word, self.is_target, self.word in ("{", "}") and not self.quoted
        if word is not None and not target and not is_brace:
            self.words.append(UNKNOWN if self.expands else word)
        self.is_target = target and word is None
        self.word, self.quoted, self.expands = None, False, False
        return is_brace and not target


@dataclass
class _Reader:
    text: str
    at: int = 0
    commands: list[list[str]] = field(default_factory=list)

    def read(self, nesting: int = 0) -> None:
        """To the end of the text, or of the substitution that is open, nested that deep. Raises Unreadable."""
        if nesting > MAX_NESTING:
            raise Unreadable("substitutions within substitutions")
        command, depth, inside = _Command(nesting=nesting), 0, nesting > 0
        while self.at < len(self.text):
            character = self.text[self.at]
            if character == ")" and inside and not depth:
                self._end(command)
                self.at += 1
                return
            depth += {"(": 1, ")": -1 if depth else 0}.get(character, 0)
            if character in "();&|\n":
                self._end(command)
                command = _Command(nesting=nesting)
                self.at += 1
            elif character in " \t\r":
                if command.end_word():
                    self._end(command)
                    command = _Command(nesting=nesting)
                self.at += 1
            else:
                self._piece_or_end(command, character)
            if inside and "case" in command.words:
                raise Unreadable("case in a substitution")
        self._end(command)
        if inside:
            raise Unreadable("a substitution is not closed")

    def _piece_or_end(self, command: _Command, character: str) -> None:
        """What stands before something that cannot be read is a command still."""
        try:
            self._piece(command, character)
        except Unreadable:
            self._end(command)
            raise

    def _end(self, command: _Command) -> None:
        command.end_word()
        if command.words:
            self.commands.append(command.words)

    def _piece(self, command: _Command, character: str) -> None:
        """One piece of a word, or what stands between two."""
        if character == "#" and command.word is None:
            self.at = end if (end := self.text.find("\n", self.at)) >= 0 else len(self.text)
        elif character in "<>":
            self._redirection(command)
        elif character == "\\":
            self._escape(command)
        elif character == "'":
            command.quoted = True
            command.add(self._until("'"))
        elif character == '"':
            command.quoted = True
            self._double_quotes(command)
        elif character == "$":
            if self.text[self.at + 1 : self.at + 2] in ("'", '"'):
                raise Unreadable("a quote behind $")
            self._dollar(command)
        elif character == "`":
            raise Unreadable("backquotes")
        else:
            command.expands |= self._expands(command, character)
            command.add(character)
            self.at += 1

    def _expands(self, command: _Command, character: str) -> bool:
        """Whether the shell may make other words of this one; braces and brackets alone are commands."""
        if character in "[{" and command.word in (None, "["):
            rest = self.text[self.at + 1 : self.at + 2]
            return not (rest in ("", "[", "}") or rest.isspace())
        return character in "*?[{"

    def _until(self, quote: str) -> str:
        end = self.text.find(quote, self.at + 1)
        if end < 0:
            raise Unreadable("a quote is not closed")
        start, self.at = self.at + 1, end + 1
        return self.text[start:end]

    def _escape(self, command: _Command) -> None:
        escaped = self.text[self.at + 1 : self.at + 2]
        if escaped != "\n":
            command.quoted = True
            command.add(escaped or "\\")
        self.at += 2

    def _double_quotes(self, command: _Command) -> None:
        command.add("")
        self.at += 1
        while (character := self.text[self.at : self.at + 1]) != '"':
            following = self.text[self.at + 1 : self.at + 2]
            if not character:
                raise Unreadable("a quote is not closed")
            if character == "`":
                raise Unreadable("backquotes")
            if character == "$":
                self._dollar(command)
            elif character == "\\" and following in ('"', "\\", "$", "`", "\n"):
                command.add("" if following == "\n" else following)
                self.at += 2
            else:
                command.add(character)
                self.at += 1
        self.at += 1

    def _dollar(self, command: _Command) -> None:
        self.at += 1
        if self.text.startswith("((", self.at):
            raise Unreadable("arithmetic")
        if self.text.startswith("(", self.at):
            self.at += 1
            self.read(command.nesting + 1)
            command.add(UNKNOWN)
        elif found := _VARIABLE.match(self.text, self.at):
            self.at = found.end()
            command.add(UNKNOWN)
        elif self.text.startswith(("{", "["), self.at):
            raise Unreadable("an expansion that is more than a variable")
        else:
            command.add("$")

    def _redirection(self, command: _Command) -> None:
        if self.text.startswith("<<", self.at) and not self.text.startswith("<<<", self.at):
            raise Unreadable("a here-document")
        if self.text.startswith(("<(", ">("), self.at):
            self.at += 2
            self.read(command.nesting + 1)
            command.add(UNKNOWN)
            return
        if command.word is not None and command.word.isdigit() and not command.quoted:
            command.word = None
        command.end_word()
        found = _REDIRECTION.match(self.text, self.at)
        assert found is not None, "the caller has seen one"
        self.at = found.end()
        command.is_target = True
