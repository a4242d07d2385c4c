"""The code fingerprint: meaning counts, words about it do not; what is imported counts, what is not does not."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from artifacts.fingerprint import _write, code_fingerprint
from artifacts.records import ArtifactError

BASE = {
    "steps/__init__.py": "",
    "steps/train.py": '"""Train."""\nfrom nanocode.training import loop\n\ndef run(x):\n    return loop.fit(x)\n',
    "nanocode/__init__.py": "",
    "nanocode/training/__init__.py": "",
    "nanocode/training/loop.py": "def fit(x):\n    from . import schedule\n    return schedule.rate(x)\n",
    "nanocode/training/schedule.py": "def rate(x):\n    return 0.5 * x\n",
    "nanocode/server.py": "PORT = 80\n",
}


@pytest.fixture
def fingerprint(tmp_path: Path):
    count = 0

    def measure(changes: dict[str, str] | None = None, module: str = "steps.train"):
        nonlocal count
        count += 1
        root = tmp_path / str(count)
        for name, text in (BASE | (changes or {})).items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return code_fingerprint(module, root=root)

    return measure


def test_the_closure_holds_submodules_relative_and_local_imports_and_packages(fingerprint):
    assert list(fingerprint().modules) == [
        "nanocode",
        "nanocode.training",
        "nanocode.training.loop",
        "nanocode.training.schedule",
        "steps",
        "steps.train",
    ]


@pytest.mark.parametrize(
    "text",
    [
        "def rate(x):\n    # half of it\n    return 0.5 * x\n",
        '"""Schedules."""\n\n\ndef rate(x):\n    """Half of x."""\n    return 0.5 * x\n',
        "def rate( x ):\n\n    return (0.5\n        * x)\n",
    ],
)
def test_comments_docstrings_and_layout_do_not_count(fingerprint, text):
    assert fingerprint({"nanocode/training/schedule.py": text}) == fingerprint()


def test_a_change_deep_below_is_seen_and_named(fingerprint):
    before = fingerprint()
    after = fingerprint({"nanocode/training/schedule.py": "def rate(x):\n    return 0.25 * x\n"})
    assert before.fingerprint != after.fingerprint
    assert {name for name in before.modules if before.modules[name] != after.modules[name]} == {
        "nanocode.training.schedule"
    }


def test_code_that_is_not_imported_does_not_count(fingerprint):
    assert fingerprint({"nanocode/server.py": "PORT = 8080\n"}) == fingerprint()


@pytest.mark.parametrize(
    ("line", "counts"),
    [
        ("import nanocode.server", True),
        ("import nanocode.server as web", True),
        ("from nanocode.server import PORT", True),
        ("from nanocode import server as web", True),
        ("from nanocode.server import *", True),
        ("from .. import nanocode", False),
        ("import importlib\nimportlib.import_module('nanocode.server')", True),
        ("def later():\n    class A:\n        if True:\n            import nanocode.server", True),
        ("try:\n    import nanocode.server\nexcept ImportError:\n    pass", True),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import nanocode.server", False),
        ("import typing\nif typing.TYPE_CHECKING:\n    pass\nelse:\n    import nanocode.server", True),
        ("import json, third_party.server", False),
    ],
)
def test_every_way_to_import_is_followed(fingerprint, line, counts):
    found = fingerprint({"steps/train.py": line + "\n"}).modules
    assert ("nanocode.server" in found) == counts


def test_an_import_cycle_ends(fingerprint):
    cycle = {
        "nanocode/training/schedule.py": "from nanocode.training import loop\n\n\ndef rate(x):\n    return 0.5 * x\n"
    }
    assert len(fingerprint(cycle).modules) == 6


def test_editing_a_package_init_counts(fingerprint):
    assert fingerprint({"nanocode/training/__init__.py": "FLAG = 1\n"}) != fingerprint()


TABLE = {
    "nanocode/settings/__init__.py": '"""Where each name is from."""\n'
    "from .fast import Fast as Quick\n"
    "from nanocode.settings.slow import Slow, slow\n"
    "__all__ = ['Quick', 'Slow', 'slow']\n",
    "nanocode/settings/fast.py": "from nanocode.settings.shared import Shared\nclass Fast(Shared): pass\n",
    "nanocode/settings/slow.py": "class Slow: pass\ndef slow(): pass\n",
    "nanocode/settings/shared.py": "class Shared: pass\n",
}
WHOLE = {"settings", "settings.fast", "settings.shared", "settings.slow"}


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from nanocode.settings import Quick", {"settings.fast", "settings.shared"}),
        ("from nanocode.settings import Slow", {"settings.slow"}),
        ("from nanocode.settings import slow", {"settings.slow"}),
        ("from nanocode.settings import shared", {"settings.shared"}),
        ("from nanocode.settings.shared import Shared", {"settings.shared"}),
        ("import nanocode.settings.shared as shared", {"settings.shared"}),
        ("import nanocode.settings.shared", WHOLE),
        ("import nanocode.settings", WHOLE),
        ("from nanocode import settings", WHOLE),
        ("from nanocode.settings import *", WHOLE),
        ("from nanocode.settings import Unknown", WHOLE),
    ],
)
def test_a_name_from_a_table_of_contents_counts_by_the_module_that_defines_it(fingerprint, line, found):
    modules = fingerprint(TABLE | {"steps/train.py": f"{line}\n"}).modules
    names = {name.removeprefix("nanocode.") for name in modules if name.startswith("nanocode.settings")}
    assert names == found and "nanocode" in modules


@pytest.mark.parametrize(
    "more", ["FLAG = 1", "import json", "from json import loads", "from .slow import *", "if FLAG:\n    pass", "f()"]
)
def test_a_package_whose_init_does_anything_else_counts_whole(fingerprint, more):
    init = "nanocode/settings/__init__.py"
    changes = TABLE | {init: f"{TABLE[init]}{more}\n", "steps/train.py": "from nanocode.settings import Slow\n"}
    assert {f"nanocode.{name}" for name in WHOLE} < set(fingerprint(changes).modules)


def test_the_root_folder_does_not_count(fingerprint):
    assert fingerprint() == fingerprint()


def test_a_missing_module_and_bad_syntax_are_named(fingerprint):
    with pytest.raises(ArtifactError, match=r"steps\.nothing has no source file"):
        fingerprint(module="steps.nothing")
    with pytest.raises(ArtifactError, match=r"nanocode\.training\.schedule .* is not valid Python"):
        fingerprint({"nanocode/training/schedule.py": "def rate(:\n"})


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("x = 1", "x = 1.0"),
        ("x = 'a'", "x = b'a'"),
        ("x = True", "x = 1"),
        ("x = None", "x = 0"),
        ("x = f'{a}b'", "x = f'{a}c'"),
        ("x = f'{a}'", "x = f'{a!r}'"),
        ("f(a)", "f(*a)"),
        ("f(a, b=c)", "f(a, **c)"),
        ("def f(a, /): pass", "def f(a): pass"),
        ("def f(a, *, b=1, c): pass", "def f(a, *, b, c=1): pass"),
        ("async def f(): pass", "def f(): pass"),
        ("x: int", "x: int = 0"),
        ("a < b", "a > b"),
        ("[*a, b]", "[a, b]"),
        ("x = {**a, 'b': 1}", "x = {None: a, 'b': 1}"),
        ("return_ = 1", "return_ = 2"),
        ("global x", "nonlocal x"),
        ("from . import a", "from .. import a"),
        ("def f():\n    'doc'\n    return 1", "def f():\n    return 2"),
    ],
)
def test_different_meanings_are_written_differently(left, right):
    def written(text: str) -> str:
        pieces: list[str] = []
        _write(ast.parse(text), pieces.append)
        return "".join(pieces)

    assert written(left) != written(right)


def test_the_written_tree_does_not_depend_on_the_python_version():
    """The text is spelled out here, so a Python that builds another tree for the same source fails this test."""
    pieces: list[str] = []
    _write(
        ast.parse('@d\ndef f(a: int = 1) -> str:\n    """Doc."""\n    return f"x{a:>{w}}" "y" u"z"\n'), pieces.append
    )
    assert "".join(pieces) == (
        "Module(body=[FunctionDef(name='f',args=arguments(args=[arg(arg='a',annotation=Name(id='int',),),],"
        "defaults=[Constant(value=1,),],),body=[Return(value=JoinedStr(values=['x',FormattedValue(value=Name(id='a',),"
        "conversion=-1,format_spec=JoinedStr(values=['>',FormattedValue(value=Name(id='w',),conversion=-1,),],),),"
        "'yz',],),),],decorator_list=[Name(id='d',),],returns=Name(id='str',),),],)"
    )


def test_eighty_modules_take_a_fraction_of_a_second(fingerprint):
    body = "".join(f"def f{n}(x, y={n}):\n    return [x * y + {n} for x in range(y) if x]\n\n\n" for n in range(25))
    names = [f"m{n}" for n in range(80)]
    many = {f"nanocode/{name}.py": body for name in names}
    many["steps/train.py"] = "".join(f"import nanocode.{name}\n" for name in names)
    started = time.process_time()
    assert len(fingerprint(many).modules) == len(names) + len(("steps", "steps.train", "nanocode"))
    assert time.process_time() - started < 1.5
