"""The fingerprint of the code that a stage runs: its module and every first-party module that it imports, transitively.

Sources are parsed, never imported. A module's hash covers its syntax tree without docstrings, so comments, formatting
and documentation change nothing, and any other edit does. The tree is written out by `_write` and not by `ast.dump`
or `ast.unparse`, whose texts differ between Python versions: fields that are empty are left out (newer versions add
some), and the constant parts of f-strings are joined. Tokens would not do either: Python 3.12 splits f-strings that
3.11 keeps whole.

Imports are found wherever they stand, inside functions too, and as constant arguments of `import_module`. Imports
under `if TYPE_CHECKING:` never run and do not count. Third-party versions do not count either; provenance names them.

A package whose `__init__` does nothing but re-export names of its own modules is a table of contents: who takes a name
from it depends on the module that defines the name, not on the others. That rests on a rule of the project, that
importing a module does nothing but define things.
Not seen: a module whose name is computed at run time, and data files that code reads by itself (make those an input
or part of the config).
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
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
    """What one module contributes: the hash of its meaning and the names it may import, absolute.

    `contents` is where a table of contents has its names from; any other module has none.
    """

    sha256: str
    imports: frozenset[str]
    contents: Mapping[str, str]


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
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen or name.partition(".")[0] not in packages:
            continue
        seen.add(name)
        waiting.extend(_behind(name, root))
        source = _source(name, root)
        if source is not None:
            modules[name] = source.sha256
            waiting.extend(source.imports)
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
    while "." in name:
        name = name.rpartition(".")[0]
        yield name


def _source(name: str, root: Path) -> _Source | None:
    path = _find(name, root)
    return None if path is None else _read(path, name)


def _behind(name: str, root: Path) -> Iterator[str]:
    """What an imported name brings with it: the module it is re-exported from, and its package.

    Importing from a package runs its `__init__`, which is why that counts, unless it is a table of contents.
    """
    package, _, value = name.rpartition(".")
    source = _source(package, root) if package else None
    if source is None or not source.contents:
        yield package
        return
    if value in source.contents:
        yield source.contents[value]
    elif _find(name, root) is None:
        yield package
    yield from _behind(package, root)


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
    sha256 = hashlib.sha256("".join(pieces).encode("utf-8", "surrogatepass")).hexdigest()
    return _Source(sha256, frozenset(imports), _contents(tree, package) if package == name else {})


def _contents(tree: ast.Module, package: str) -> dict[str, str]:
    """The names that a package re-exports and where each is from; empty when its `__init__` does anything else."""
    contents: dict[str, str] = {}
    for node in _meaningful(tree, "body", tree.body):
        if isinstance(node, ast.Assign) and [getattr(target, "id", None) for target in node.targets] == ["__all__"]:
            continue
        module = _module(node, package) if isinstance(node, ast.ImportFrom) else ""
        if not isinstance(node, ast.ImportFrom) or not module.startswith(f"{package}."):
            return {}
        contents |= {alias.asname or alias.name: f"{module}.{alias.name}" for alias in node.names}
    return {} if "*" in contents else contents


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """What the statements import, at any depth. Expressions hold no import statement, so they are not walked."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name
                if alias.asname is None:  # `import a.b.c` makes a and a.b reachable by their names, too.
                    yield from _parents(alias.name)
        elif isinstance(node, ast.ImportFrom):
            module = _module(node, package)
            yield from (module if alias.name == "*" else f"{module}.{alias.name}" for alias in node.names)
        checking = isinstance(node, ast.If) and _is_type_checking(node.test)
        for block in _BLOCKS[1:] if checking else _BLOCKS:
            waiting.extend(getattr(node, block, ()))


def _module(node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from, absolute."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    return ".".join([*parts[: len(parts) - node.level + 1], *([node.module] if node.module else [])])


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


def _write_list(items: Sequence[object], write: Callable[[str], object]) -> None:
    write("[")
    for item in items:
        if isinstance(item, ast.AST):
            _write(item, write)
        else:
            write(repr(item))
        write(",")
    write("]")


def _meaningful(node: ast.AST, name: str, items: Sequence[object]) -> Sequence[object]:
    """A body without its docstring; an f-string's parts with neighbouring constants joined."""
    if name == "body" and isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
        return items[1:]
    if isinstance(node, ast.JoinedStr):
        return _joined(items)
    return items


def _joined(items: Sequence[object]) -> list[object]:
    joined: list[object] = []
    for item in items:
        if isinstance(item, ast.Constant) and joined and isinstance(joined[-1], str):
            joined[-1] += str(item.value)
        else:
            joined.append(str(item.value) if isinstance(item, ast.Constant) else item)
    return [item for item in joined if item != ""]
