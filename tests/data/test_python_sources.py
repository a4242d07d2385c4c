"""The interpreter as a corpus: what is read, how it is named, and that prose and code of a module stay together."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from nanocode.data.python_sources import (
    docs_documents,
    docs_files,
    stdlib_documents,
    stdlib_files,
    stdlib_root,
)
from nanocode.data.shards import split_of


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library in the layout of the real one, with everything in it that must be left out."""
    files = {
        "json/decoder.py": (
            '"""Decode JSON."""\n\nclass Decoder:\n    """A decoder."""\n\n'
            '    def decode(self, s, /, *, strict=True):\n        """Return the value of s."""\n'
            "if True:\n    def helper():\n        'Help.'\n"
        ),
        "json/__init__.py": '"""The package."""\n',
        "json/tests/test_decoder.py": "assert False\n",
        "textwrap.py": "value = 1\n",
        "shlex.py": "def broken(:\n",
        "test/support.py": "x = 1\n",
        "idlelib/idle_test/test_run.py": "x = 1\n",
        "encodings/cp037.py": "x = 1\n",
        "site-packages/json/other.py": "x = 1\n",
        "_sysconfigdata_x86_64.py": "build_time_vars = {}\n",
        "sitecustomize.py": "x = 1\n",
        "my_own_module.py": "x = 1\n",
        "pydoc_data/topics.py": (
            "topics = {'compound': 'one\\ntwo\\nthree\\nfour\\nfive\\nsix\\n',"
            " 'if': 'three\\nfour\\n', 'while': 'three\\nfour\\n', 'names': 'seven\\neight\\n'}\n"
        ),
    }
    for name, text in files.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path / "lib"


def test_only_the_library_itself_is_code(library: Path) -> None:
    origins = [file.origin for file in stdlib_files(library)]
    assert origins == ["json/__init__.py", "json/decoder.py", "shlex.py", "textwrap.py"]


def test_docstrings_of_a_module_form_one_document_in_file_order(library: Path) -> None:
    documents = {document.origin: document for document in docs_documents(library, None)}
    decoder = documents["json/decoder.py#docstrings"]
    assert decoder.content == (
        "# json.decoder\n\nDecode JSON.\n\n## class Decoder\n\nA decoder.\n\n"
        "## Decoder.decode(self, s, /, *, strict=True)\n\nReturn the value of s.\n\n## helper()\n\nHelp.\n"
    )
    assert decoder.group == "json/decoder.py"
    assert documents["json/__init__.py#docstrings"].content == "# json\n\nThe package.\n"
    assert documents["textwrap.py#docstrings"].content == ""
    assert documents["shlex.py#docstrings"].fault == "unparsable"


def test_a_topic_that_is_a_section_of_another_is_left_out(library: Path) -> None:
    origins = {document.origin for document in docs_documents(library, None)}
    assert {origin for origin in origins if "topics" in origin} == {
        "pydoc_data/topics.py#compound",
        "pydoc_data/topics.py#names",
    }


def test_the_installed_manual_replaces_the_topics_and_joins_its_module(library: Path, tmp_path: Path) -> None:
    manual = tmp_path / "manual"
    for page in ("library/json.rst.txt", "library/json.decoder.rst.txt", "tutorial/modules.rst.txt"):
        (manual / page).parent.mkdir(parents=True, exist_ok=True)
        (manual / page).write_text("A page.\n")
    groups = {document.origin: document.group for document in docs_documents(library, manual)}
    assert not any("topics" in origin for origin in groups)
    assert groups["manual/library/json.rst.txt"] == "json/__init__.py"
    assert groups["manual/library/json.decoder.rst.txt"] == "json/decoder.py"
    assert groups["manual/tutorial/modules.rst.txt"] == "manual/tutorial/modules.rst.txt"


def test_prose_and_code_of_a_module_fall_on_the_same_side(tmp_path: Path) -> None:
    """On real packages: no docstring of a held-out module is trained on through the code, nor the reverse."""
    root = tmp_path / "lib"
    for package in ("json", "asyncio", "concurrent"):
        shutil.copytree(stdlib_root() / package, root / package)
    code = {document.origin: split_of(document.group, 0.1) for document in stdlib_documents(root)}
    assert set(code.values()) == {"train", "validation"}
    compared = 0
    for document in docs_documents(root, None):
        module, _, part = document.origin.partition("#")
        if part == "docstrings":
            assert split_of(document.group, 0.1) == code[module]
            compared += 1
    assert compared == len(code)


def test_the_real_library_is_read_under_relative_names() -> None:
    root = stdlib_root()
    files = docs_files(root, None)
    assert len(files) > 300
    origins = [file.origin for file in files]
    assert len(set(origins)) == len(origins)
    assert not any(origin.startswith("/") or str(root) in origin or "\\" in origin for origin in origins)
    assert not any("_sysconfigdata" in origin or "/test" in origin or "site-packages" in origin for origin in origins)


def test_two_readings_give_the_same_documents(library: Path) -> None:
    assert list(docs_documents(library, None)) == list(docs_documents(library, None))
    assert list(stdlib_documents(library)) == list(stdlib_documents(library))
