"""From what a model says to the program that is judged: pure functions of text.

A base model continues a prompt and does not know when to stop: its text is cut at the stop sequences of the paper
(Chen et al., 2021). A chat model wraps its code in words and fences, or sends the body of the function alone.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
INDENT = "    "
# Longer replies are no answers to such questions; looking for the code in them would take long.
MAX_CHARACTERS = 50_000
MAX_TRIES = 50

_OPENS_FENCE = re.compile(r"(?P<indent>[ \t]*)(?P<fence>`{3,}|~{3,})[ \t]*(?P<info>[^`]*)")
_OWN_DEFINITION = re.compile(r"^(?:async[ \t]+def|def|class)[ \t]", re.M)
_STARTS_CODE = re.compile(
    r"(?:async[ \t]+)?def[ \t]+\w+[ \t]*\(|class[ \t]+\w+[ \t]*[(:]|from[ \t]+[\w.]+[ \t]+import\b|import[ \t]+\w"
    r"|(?:for|if|try|while|with)\b.*:[ \t]*$|@\w|(?:return|yield)\b|\w+[ \t]*=[^=]|(?: {4}|\t)[ \t]*\S"
)
_DOCTEST = re.compile(r"(?:>>>|\.\.\.)(?: |$)")
_NO_PROGRAM = frozenset({"bash", "console", "json", "output", "sh", "shell", "text", "toml", "yaml"})


def cut_completion(text: str) -> str:
    """A completion up to the first stop sequence."""
    return text[: min((at for stop in STOPS if (at := text.find(stop)) >= 0), default=len(text))]


def code_in_reply(reply: str, entry_point: str) -> str:
    """The code of a reply, without fences; empty when there is none.

    Of its fenced blocks the last that defines ``entry_point``, else the last that is not marked as something other than
    Python. Without fences, what follows from the first line that looks like code. Words behind the code, and a last
    statement that was cut off, are left out.
    """
    text = reply[:MAX_CHARACTERS].replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_blocks(text)) or [_Block("", _from_first_code(text))]
    codes = [code for block in blocks if block.is_program and (code := _without_prompts(block.code)).strip()]
    defining = [code for code in codes if defines(code, entry_point)]
    chosen = [*codes, *defining][-1:]
    return _readable(chosen[0], entry_point) if chosen else ""


def defines(code: str, name: str) -> bool:
    """Whether a line without indentation defines or assigns ``name``."""
    name = re.escape(name)
    return re.search(rf"^(?:(?:async[ \t]+)?def[ \t]+{name}\b|{name}[ \t]*=[^=])", code, re.M) is not None


def preamble(prompt: str, entry_point: str) -> str:
    """What stands in a prompt before its function: imports and helpers, without the function's decorators.

    Raises ValueError when the prompt does not define the function.
    """
    found = list(re.finditer(rf"^(?:async[ \t]+)?def[ \t]+{re.escape(entry_point)}\b", prompt, re.M))
    if not found:
        raise ValueError(f"the prompt does not define {entry_point}")
    return re.sub(r"(?:^@[^\n]*\n)+\Z", "", prompt[: found[-1].start()], flags=re.M)


def completed_program(prompt: str, completion: str) -> str:
    """The program of a base model."""
    return prompt + cut_completion(completion)


def replied_program(prompt: str, code: str, entry_point: str) -> str:
    """The program of a chat model: its code behind the prompt's imports and helpers, or, when the code has no function
    or class of its own, as the function's body.
    """
    if _is_module(code, entry_point):
        return f"{preamble(prompt, entry_point)}\n{code}"
    return f"{prompt.rstrip()}\n{_as_body(code)}"


@dataclass(frozen=True)
class _Block:
    info: str
    code: str

    @property
    def is_program(self) -> bool:
        words = self.info.split()
        return not words or words[0].lower() not in _NO_PROGRAM


def _blocks(text: str) -> Iterator[_Block]:
    """Fenced blocks as CommonMark has them; one that is not closed goes to the end."""
    lines = iter(text.split("\n"))
    for line in lines:
        opened = _OPENS_FENCE.fullmatch(line)
        if opened is None:
            continue
        indent, fence = opened["indent"], opened["fence"]
        code = []
        for inside in lines:
            if re.fullmatch(rf"[ \t]*{fence[0]}{{{len(fence)},}}[ \t]*", inside):
                break
            code.append(inside.removeprefix(indent))
        yield _Block(opened["info"].strip(), "\n".join(code))


def _without_prompts(code: str) -> str:
    """An interactive session's input alone, where the code is one."""
    lines = code.split("\n")
    first = next((line for line in lines if line.strip()), "")
    if not first.startswith(">>>"):
        return code
    return "\n".join(line[4:] for line in lines if _DOCTEST.match(line))


def _from_first_code(text: str) -> str:
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if _STARTS_CODE.match(line):
            return "\n".join(lines[number:])
    return ""


def _readable(code: str, entry_point: str) -> str:
    """The code up to where Python cannot read on; unchanged, to fail as it stands, when its function is not before."""
    lines = code.strip("\n").rstrip().split("\n")
    length, is_module = len(lines), _is_module(code, entry_point)
    for _ in range(MAX_TRIES):
        shorter = "\n".join(lines[:length])
        if not shorter.strip() or _is_module(shorter, entry_point) != is_module:
            break
        fault = _fault(shorter) if is_module else _fault(f"def body():\n{_as_body(shorter)}\n") - 1
        if fault <= 0:
            return shorter.rstrip()
        length = min(fault, length) - 1
    return "\n".join(lines)


def _is_module(code: str, entry_point: str) -> bool:
    """Whether the code brings a function of its own, and is not the body of one."""
    return defines(code, entry_point) or _OWN_DEFINITION.search(code) is not None


def _fault(code: str) -> int:
    """The line at which Python cannot read on, from 1; 0 when there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            ast.parse(code)
        except SyntaxError as error:
            return error.lineno or 1
        except (ValueError, RecursionError, MemoryError):
            return 1
    return 0


def _as_body(code: str) -> str:
    """Indented by four spaces, with tabs as four; lines deeper than the first keep their distance."""
    lines = re.sub(r"^[ \t]+", lambda spaces: spaces[0].expandtabs(4), code.strip("\n"), flags=re.M).split("\n")
    deeper = next((line for line in lines[1:] if line.strip()), "")
    if not lines[0].startswith(" ") and not lines[0].rstrip().endswith((":", ",", "(", "[", "{", "\\")):
        # The reply was stripped, and with it the first line alone lost its indentation.
        lines[0] = deeper[: len(deeper) - len(deeper.lstrip())] + lines[0]
    return textwrap.indent(textwrap.dedent("\n".join(lines)), INDENT)
