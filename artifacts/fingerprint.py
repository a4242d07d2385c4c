"""The fingerprint of the code that a stage runs: its module and every first-party module that it imports, transitively.

Sources are parsed, never imported. A module's hash covers its syntax tree without docstrings, so comments, formatting
and documentation change nothing, and any other edit does. The tree is written out by `_write` and not by `ast.dump`
or `ast.unparse`, whose texts differ between Python versions: fields that are empty are left out (newer versions add
some), and the constant parts of f-strings are joined. Tokens would not do either: Python 3.12 splits f-strings that
3.11 keeps whole.

Imports are found wherever they stand, inside functions too, and as constant arguments of `import_module`. Imports
under `if TYPE_CHECKING:` never run and do not count. Third-party versions do not count either; provenance names them.
Not seen: a module whose name is computed at run time, and data files that code reads by itself (make those an input
or part of the config).
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from artifacts.canonical import digest
from artifacts.records import ArtifactError, Fingerprint

FIRST_PARTY = ("nanocode", "steps", "artifacts")

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_IMPORTERS = ("import_module", "__import__")
_NOT_MEANING = frozenset({"ctx", "type_comment", "type_ignores", "kind"})


@dataclass(frozen=True)
class _Source:
    """What one module contributes: the hash of its meaning and the names it may import, absolute."""

    sha256: str
    imports: frozenset[str]


@functools.cache
def code_fingerprint(module: str, packages: tuple[str, ...] = FIRST_PARTY, root: Path = Path()) -> Fingerprint:
    """Fingerprint of `module` and all it imports from `packages`, whose folders stand in `root`.

    Computed once per process: what runs is what was loaded, whatever happens to the files meanwhile
    (`forget_sources` forgets). An imported name without a source file is a value of its package, or
    fails when it is run. Raises ArtifactError when `module` itself has none, or when a source is not valid Python.
    """
    if _find(module, root) is None:
        raise ArtifactError(f"module {module} has no source file under {root.absolute()}")
    modules: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        path = _find(name, root) if name.partition(".")[0] in packages and name not in modules else None
        if path is not None:
            source = _read(path, name)
            modules[name] = source.sha256
            waiting.extend(source.imports)
            waiting.extend(_parents(name))
    modules = dict(sorted(modules.items()))
    return Fingerprint(digest(modules), modules)


def forget_sources() -> None:
    """Read every source again when it is next asked for."""
    code_fingerprint.cache_clear()
    _read.cache_clear()


def _find(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    for candidate in (path / "__init__.py", path.with_name(path.name + ".py")):
        if candidate.is_file():
            return candidate
    return None


def _parents(name: str) -> Iterator[str]:
    """The packages around a module: importing it runs their `__init__`."""
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


@functools.cache
def _read(path: Path, name: str) -> _Source:
    data = path.read_bytes()
    try:
        tree = ast.parse(data, filename=str(path))
    except (SyntaxError, ValueError) as error:
        raise ArtifactError(f"module {name} ({path}) is not valid Python: {error}") from None
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    imports = set(_imports(tree, package))
    if any(importer.encode() in data for importer in _IMPORTERS):
        imports.update(_dynamic(tree))
    pieces: list[str] = []
    _write(tree, pieces.append)
    return _Source(hashlib.sha256("".join(pieces).encode("utf-8", "surrogatepass")).hexdigest(), frozenset(imports))


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """What the statements import, at any depth. Expressions hold no import statement, so they are not walked."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from _from(node, package)
        checking = isinstance(node, ast.If) and _is_type_checking(node.test)
        for block in _BLOCKS[1:] if checking else _BLOCKS:
            waiting.extend(getattr(node, block, ()))


def _from(node: ast.ImportFrom, package: str) -> Iterator[str]:
    base = node.module or ""
    if node.level:
        parts = package.split(".")
        base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
    yield base
    yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _dynamic(tree: ast.Module) -> Iterator[str]:
    """The constant arguments of `import_module` and `__import__`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", None)
            if called in _IMPORTERS and isinstance(node.args[0].value, str):
                yield node.args[0].value


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "id", getattr(test, "attr", None)) == "TYPE_CHECKING"


def _write(node: ast.AST, write: Callable[[str], object]) -> None:
    """Write a syntax tree as text that depends on its meaning alone."""
    write(type(node).__name__)
    write("(")
    for name in node._fields:
        value = getattr(node, name, None)
        if value is None and not (isinstance(node, ast.Constant) and name == "value"):
            continue
        if name in _NOT_MEANING or value == []:
            continue
        write(name)
        write("=")
        if isinstance(value, ast.AST):
            _write(value, write)
        elif isinstance(value, list):
            _write_list(_meaningful(node, name, value), write)
        else:
            write(repr(value))
        write(",")
    write(")")


def _write_list(items: list[object], write: Callable[[str], object]) -> None:
    write("[")
    for item in items:
        if isinstance(item, ast.AST):
            _write(item, write)
        else:
            write(repr(item))
        write(",")
    write("]")


def _meaningful(node: ast.AST, name: str, items: list[object]) -> list[object]:
    """A body without its docstring; an f-string's parts with neighbouring constants joined."""
    if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        return items[1:]
    if isinstance(node, ast.JoinedStr):
        return _joined(items)
    return items


def _joined(items: list[object]) -> list[object]:
    joined: list[object] = []
    for item in items:
        if isinstance(item, ast.Constant) and joined and isinstance(joined[-1], str):
            joined[-1] += str(item.value)
        else:
            joined.append(str(item.value) if isinstance(item, ast.Constant) else item)
    return [item for item in joined if item != ""]
