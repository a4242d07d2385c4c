"""Fenced code in an answer: which block is the file, in which language, under which name."""

from __future__ import annotations

import ast
import re
import warnings
from dataclasses import dataclass

from nanocode.tasks.converters.diffs import lines_of
from nanocode.tasks.converters.plans import MIN_CODE_CHARACTERS, Drop

_OPENING = re.compile(r"(?P<indent> {0,3})(?P<fence>`{3,}|~{3,})[ \t]*(?P<language>[\w+#.-]*)[^`]*")
_FIRST_CODE_LINE = re.compile(r"^(?:def |class |import |from \w|@\w|async def )", re.M)
_DEFINITION = re.compile(
    r"^\s*(?:export\s+|default\s+|public\s+|private\s+|static\s+|abstract\s+|final\s+|async\s+|pub\s+)*"
    r"(?:def|class|function|func|fn|interface|struct|module)\s+(?P<name>[A-Za-z_]\w*)",
    re.M,
)
MAX_NAME_CHARACTERS = 40
DEFAULT_NAME = "solution"
PYTHON = "python"

EXTENSIONS = {
    "python": "py",
    "javascript": "js",
    "typescript": "ts",
    "java": "java",
    "c": "c",
    "cpp": "cpp",
    "csharp": "cs",
    "go": "go",
    "rust": "rs",
    "ruby": "rb",
    "php": "php",
    "swift": "swift",
    "kotlin": "kt",
    "scala": "scala",
    "r": "r",
    "julia": "jl",
    "perl": "pl",
    "lua": "lua",
    "haskell": "hs",
    "sql": "sql",
    "html": "html",
    "css": "css",
    "bash": "sh",
    "json": "json",
    "yaml": "yaml",
    "xml": "xml",
}
_OTHER_NAMES = {
    "py": "python",
    "python3": "python",
    "js": "javascript",
    "jsx": "javascript",
    "node": "javascript",
    "ts": "typescript",
    "tsx": "typescript",
    "c++": "cpp",
    "c#": "csharp",
    "cs": "csharp",
    "golang": "go",
    "rs": "rust",
    "rb": "ruby",
    "sh": "bash",
    "shell": "bash",
    "zsh": "bash",
    "yml": "yaml",
    "mysql": "sql",
    "postgresql": "sql",
}
# What stands beside code: commands to run it, what it prints, how it is set up.
_BESIDE_CODE = frozenset({"bash", "json", "yaml", "xml", "html", "css"})
_NO_CODE = frozenset(
    {"text", "txt", "plaintext", "plain", "output", "console", "markdown", "md", "none", "log", "diff"}
)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language ("" when it says none), its code, and the characters of the text it takes."""

    language: str
    code: str
    start: int
    stop: int


def blocks_of(text: str) -> list[Block]:
    """The fenced blocks of a Markdown text, in order. Raises Drop for one that is never closed."""
    found: list[Block] = []
    opening: re.Match[str] | None = None
    began, body, position = 0, list[str](), 0
    for line in lines_of(text):
        content = line.rstrip("\n")
        if opening is None:
            opening = _OPENING.fullmatch(content)
            began, body = position, []
        elif _closes(content, opening["fence"]):
            found.append(Block(_language(opening["language"]), "".join(body), began, position + len(content)))
            opening = None
        else:
            body.append(_outdented(line, len(opening["indent"])))
        position += len(line)
    if opening is not None:
        raise Drop("code block is not closed")
    return found


def main_block(text: str) -> Block:
    """The block that is the file: the longest in the one language of the answer. Raises Drop.

    A block without a language is only taken when none says one. Without any block, Python from the first line that can
    only be code on is taken, if it parses.
    """
    blocks = [block for block in blocks_of(text) if block.language not in _NO_CODE and block.code.strip()]
    if not blocks:
        return _bare_python(text)
    named = [block for block in blocks if block.language]
    languages = {block.language for block in named}
    main = languages - _BESIDE_CODE or languages
    if len(main) > 1:
        raise Drop("two languages", ", ".join(sorted(main)))
    candidates = [block for block in named if block.language in main] or blocks
    return max(candidates, key=lambda block: len(block.code))


def check_code(code: str, language: str, max_lines: int) -> None:
    """Raise Drop for code of a wrong size or unknown language, and for Python that does not parse."""
    if len(code.strip()) < MIN_CODE_CHARACTERS:
        raise Drop("code is too short")
    if code.count("\n") > max_lines:
        raise Drop("code is too long")
    if language not in EXTENSIONS:
        raise Drop("unknown language", language)
    if language == PYTHON and parsed(code) is None:
        raise Drop("Python does not parse")


def guess_language(code: str) -> str:
    """Python if it parses and defines or imports something, else "" for unknown."""
    tree = parsed(code)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
    return PYTHON if tree is not None and any(isinstance(node, kinds) for node in tree.body) else ""


def parsed(code: str) -> ast.Module | None:
    """The syntax tree of Python source; None when there is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(code)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def file_name(code: str, language: str, prompt: str) -> str:
    """The one file of that language which the prompt names, else the first definition's name, else `DEFAULT_NAME`."""
    extension = EXTENSIONS[language]
    named = set(re.findall(rf"(?<![\w./-])[A-Za-z_][\w/-]*\.{extension}\b(?![\w./-]*\w)", prompt))
    if len(named) == 1:
        return str(named.pop())
    name = first_definition(code) or DEFAULT_NAME
    if language != "java":  # whose compiler wants the file to be called as the class is
        name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
    return f"{name[:MAX_NAME_CHARACTERS]}.{extension}"


def first_definition(code: str) -> str | None:
    """The name of the first function or class that the code defines at any level."""
    found = _DEFINITION.search(code)
    return found["name"].strip("_") or None if found else None


def definition_above(lines: list[str], index: int) -> str | None:
    """The definition line at or nearest above a line: its keyword and name, as they stand there."""
    for line in reversed(lines[: index + 1]):
        found = _DEFINITION.match(line)
        if found:
            return line[: found.end()].strip()
    return None


def _bare_python(text: str) -> Block:
    first = _FIRST_CODE_LINE.search(text)
    if first is None or parsed(text[first.start() :]) is None:
        raise Drop("no code block")
    return Block(PYTHON, text[first.start() :].rstrip("\n") + "\n", first.start(), len(text))


def _closes(line: str, fence: str) -> bool:
    stripped = line.strip()
    return len(stripped) >= len(fence) and set(stripped) == {fence[0]}


def _outdented(line: str, indent: int) -> str:
    return line[min(indent, len(line) - len(line.lstrip(" "))) :]


def _language(name: str) -> str:
    lower = name.lower().strip(".")
    return _OTHER_NAMES.get(lower, lower)
