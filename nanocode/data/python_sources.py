"""The running interpreter as a corpus: its documentation and its standard library (PSF licence, on every machine).

Code: one document a module file. Tests, vendored packages, character tables and whatever is written per machine are
left out. Documentation: one document a module, made of its docstrings in file order under their names; then the reST
manual where it is installed, else `pydoc_data.topics`, which is that manual's reference part already rendered (both
would train and hold out the same sentences). Docstrings and code of a module share its file as group, and so does the
manual's page on the module.
"""

from __future__ import annotations

import ast
import sys
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nanocode.data.documents import RawDocument, stable_order

LICENCE = "PSF-2.0"
TOPICS = "pydoc_data/topics.py"
CONTAINED_SHARE = 0.8  # of a topic's lines found in a longer topic: it is a section of it

_LEFT_OUT_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings", "pydoc_data"}
)
_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceFile:
    """One file of a source: where it is now, and its stable name."""

    path: Path
    origin: str


def stdlib_root() -> Path:
    """Where the running interpreter keeps its standard library (of the base installation, in a virtual environment)."""
    return Path(sysconfig.get_path("stdlib"))


def manual_root() -> Path | None:
    """Where distributions put the reST manual of this very Python version; None when it is not installed."""
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for prefix in (Path(sys.base_prefix), Path("/usr")):
        folder = prefix / "share" / "doc" / version / "html" / "_sources"
        if folder.is_dir():
            return folder
    return None


def stdlib_files(root: Path) -> list[SourceFile]:
    """The module files under `root` that make up the code corpus, sorted by name."""
    files = []
    for module in sys.stdlib_module_names:
        for path in [root / f"{module}.py", *(root / module).rglob("*.py")]:
            relative = path.relative_to(root)
            if path.is_file() and not _LEFT_OUT_FOLDERS.intersection(relative.parts):
                files.append(SourceFile(path, relative.as_posix()))
    return sorted(files, key=lambda file: file.origin)


def docs_files(root: Path, manual: Path | None) -> list[SourceFile]:
    """The files that the documentation is read from: modules, then the manual or the topics."""
    files = stdlib_files(root)
    if manual is None:
        topics = root / TOPICS
        return [*files, SourceFile(topics, TOPICS)] if topics.is_file() else files
    pages = [SourceFile(path, f"manual/{path.relative_to(manual).as_posix()}") for path in manual.rglob("*.rst*")]
    return files + sorted(pages, key=lambda page: page.origin)


def stdlib_documents(root: Path) -> Iterator[RawDocument]:
    """One document a module file, in stable order."""
    for file in stable_order(stdlib_files(root), lambda file: file.origin):
        yield RawDocument(file.path.read_bytes(), file.origin, LICENCE, group=file.origin)


def docs_documents(root: Path, manual: Path | None) -> Iterator[RawDocument]:
    """Docstrings by module, manual pages or topics, in stable order."""
    modules = {file.origin for file in stdlib_files(root)}
    documents: list[RawDocument] = []
    for file in docs_files(root, manual):
        content = file.path.read_bytes()
        if file.origin == TOPICS:
            documents.extend(_topics(content))
        elif file.origin in modules:
            documents.append(_docstrings(content, file.origin))
        else:
            documents.append(RawDocument(content, file.origin, LICENCE, group=_page_group(file.origin, modules)))
    return iter(stable_order(documents, lambda document: document.origin))


def _docstrings(content: bytes, origin: str) -> RawDocument:
    """A module's docstrings as one text: each under its qualified name and signature, in file order."""
    name = f"{origin}#docstrings"
    try:
        text = content.decode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a stray escape in somebody's string literal is not our news
            tree = ast.parse(text)
    except UnicodeDecodeError:
        return RawDocument(content, name, LICENCE, group=origin)
    except (SyntaxError, ValueError):
        return RawDocument(b"", name, LICENCE, group=origin, fault="unparsable")
    sections = []
    for heading, node in _documented(tree, _module_name(origin)):
        docstring = ast.get_docstring(node)
        if docstring and docstring.strip():
            sections.append(f"{heading}\n\n{docstring.strip()}")
    return RawDocument("\n\n".join(sections) + "\n" * bool(sections), name, LICENCE, group=origin)


def _documented(tree: ast.Module, module: str) -> Iterator[tuple[str, ast.Module | _Definition]]:
    yield f"# {module}", tree
    yield from _definitions(tree.body, "")


def _definitions(body: Iterable[ast.stmt], prefix: str) -> Iterator[tuple[str, _Definition]]:
    """Classes and functions in file order with their headings, those under `if` and `try` included."""
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            name = f"{prefix}{statement.name}"
            yield f"## class {name}", statement
            yield from _definitions(statement.body, f"{name}.")
        elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"## {prefix}{statement.name}({ast.unparse(statement.args)})", statement
        elif isinstance(statement, (ast.If, ast.Try)):
            nested = [*statement.body, *statement.orelse]
            yield from _definitions(nested, prefix)


def _module_name(origin: str) -> str:
    return origin.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _page_group(origin: str, modules: set[str]) -> str:
    """The module file that a manual page such as ``manual/library/json.rst.txt`` describes, else the page itself."""
    page = origin.removeprefix("manual/library/").partition(".rst")[0].replace(".", "/")
    for module in (f"{page}.py", f"{page}/__init__.py"):
        if module in modules:
            return module
    return origin


def _topics(content: bytes) -> Iterator[RawDocument]:
    """The topics, sections of other topics left out: else one side of the split would hold the other's sentences."""
    [literal] = [node.value for node in ast.parse(content).body if isinstance(node, ast.Assign)]
    topics: dict[str, str] = ast.literal_eval(literal)
    lines = {name: {line.strip() for line in text.splitlines() if line.strip()} for name, text in topics.items()}
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        own = lines.pop(name, None)
        if own is None:
            continue
        yield RawDocument(topics[name].strip() + "\n", f"{TOPICS}#{name}", LICENCE, group=f"{TOPICS}#{name}")
        for other in [other for other, theirs in lines.items() if len(theirs & own) >= CONTAINED_SHARE * len(theirs)]:
            del lines[other]
