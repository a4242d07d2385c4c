"""The arrows between the parts of the project, and that importing any of them does nothing but define things."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("flows", "steps", "artifacts", "nanocode")

# What each part may not import: the first prefix that fits a module decides.
FORBIDDEN: dict[str, tuple[str, ...]] = {
    "nanocode.cli": (),
    "nanocode.config": ("flows", "steps", "artifacts", "nanocode", "jax", "metaflow"),
    "nanocode.growing_file": ("flows", "steps", "artifacts", "nanocode", "jax", "metaflow"),
    "nanocode.words": ("flows", "steps", "artifacts", "nanocode", "jax", "metaflow"),
    "nanocode.merges": ("flows", "steps", "artifacts", "nanocode", "jax", "metaflow"),
    "nanocode.workers": ("flows", "steps", "artifacts", "nanocode", "jax", "metaflow"),
    "nanocode.tokenizer": ("flows", "steps", "artifacts", "jax", "metaflow"),
    "nanocode.conversation": ("flows", "steps", "artifacts", "jax", "metaflow"),
    "nanocode.training": ("flows", "steps", "artifacts", "nanocode.cli", "nanocode.constitution", "metaflow"),
    "nanocode.agent": ("flows", "steps", "artifacts", "nanocode.cli", "nanocode.training", "jax", "metaflow"),
    "nanocode.tasks": ("flows", "steps", "artifacts", "nanocode.cli", "nanocode.training", "jax", "metaflow"),
    "nanocode.data": ("flows", "steps", "artifacts", "nanocode.cli", "nanocode.training", "jax", "metaflow"),
    "nanocode.constitution": ("flows", "steps", "artifacts", "nanocode.cli", "nanocode.training", "jax", "metaflow"),
    "nanocode": ("flows", "steps", "artifacts", "nanocode.cli", "metaflow"),
    "artifacts": ("flows", "steps", "nanocode", "jax", "flax", "optax", "orbax", "metaflow"),
    "steps": ("flows", "nanocode.cli", "metaflow"),
    "flows": ("nanocode.cli", "jax", "flax", "optax", "orbax"),
}
# The ground floor: these modules of the project and no others.
GROUND_FLOOR = {
    "nanocode.config": set(),
    "nanocode.config_file": {"nanocode.config"},
    "nanocode.growing_file": set(),
    "nanocode.words": set(),
    "nanocode.merges": set(),
    "nanocode.workers": set(),
    "nanocode.tokenizer": {"nanocode.words", "nanocode.merges", "nanocode.workers"},
    "nanocode.conversation": {"nanocode.tokenizer"},
}


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    """Every module of the project, by name."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    return {module_name(path): path for path in found}


def imported(source: str, module: str, is_package: bool) -> Iterator[str]:
    """Everything that `source` imports anywhere, functions included, with ``from a import b`` as ``a`` and ``a.b``."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".") if is_package else module.split(".")[:-1]
            start = base[: len(base) - node.level + 1] if node.level else []
            source_name = ".".join([*start, *([node.module] if node.module else [])])
            yield source_name
            yield from (f"{source_name}.{alias.name}" for alias in node.names)


def imports_of(module: str, path: Path) -> set[str]:
    return set(imported(path.read_text(encoding="utf-8"), module, path.name == "__init__.py"))


def crossings(module: str, names: set[str]) -> list[str]:
    """The imports of `module` that its part of the project may not have."""
    part = next(part for part in FORBIDDEN if within(module, part))
    return sorted(
        {
            name
            for name in names
            for forbidden in FORBIDDEN[part]
            if within(name, forbidden) and not (within(name, part) and within(part, forbidden))
        }
    )


@pytest.mark.parametrize("module", modules())
def test_imports_point_one_way(module: str) -> None:
    assert crossings(module, imports_of(module, modules()[module])) == []


def test_nothing_below_the_roof_imports_the_command_line() -> None:
    users = {
        module
        for module, path in modules().items()
        if not within(module, "nanocode.cli") and any(within(name, "nanocode.cli") for name in imports_of(module, path))
    }
    assert users == set()


@pytest.mark.parametrize("module", GROUND_FLOOR)
def test_the_ground_floor_stands_on_itself(module: str) -> None:
    parts = {name: path for name, path in modules().items() if within(name, module)}
    own = set().union(*(imports_of(name, path) for name, path in parts.items()))
    assert {name for name in modules() if name in own and not within(name, module)} == GROUND_FLOOR[module]


@pytest.mark.parametrize(
    ("module", "source", "found"),
    [
        ("artifacts.store", "import nanocode.config", ["nanocode.config"]),
        ("artifacts.store", "def f():\n    from nanocode import config", ["nanocode", "nanocode.config"]),
        ("nanocode.data.loader", "from artifacts.store import open", ["artifacts.store", "artifacts.store.open"]),
        ("nanocode.training.loop", "from nanocode import constitution", ["nanocode.constitution"]),
        (
            "nanocode.training.loop",
            "from ..constitution import soul",
            ["nanocode.constitution", "nanocode.constitution.soul"],
        ),
        ("nanocode.agent.tools", "import jax.numpy as jnp", ["jax.numpy"]),
        ("nanocode.serving.server", "from nanocode import cli", ["nanocode.cli"]),
        ("steps.pretrain", "import nanocode.training.loop, artifacts.build, jax", []),
        ("nanocode.cli.run", "import flows, steps.pretrain, artifacts", []),
        ("nanocode.configuration", "import artifactsmith", []),
        ("nanocode.config.data", "from nanocode.config import section", []),
        ("nanocode.config.data", "from nanocode import words", ["nanocode", "nanocode.words"]),
    ],
)
def test_the_check_finds_what_it_is_for(module: str, source: str, found: list[str]) -> None:
    assert crossings(module, set(imported(source, module, is_package=False))) == found


# Runs in a process of its own: imports every module named on stdin and says what that changed.
PROBE = """
import json, os, signal, sys, threading
names, third_party = json.load(sys.stdin)
sys.argv = ["probe", "--no-such-option", "run"]
import importlib
for name in third_party:
    importlib.import_module(name)
def state():
    handlers = {number: repr(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    return {"environment": dict(os.environ), "handlers": handlers, "argv": list(sys.argv), "folder": os.getcwd(),
            "files": sorted(os.listdir(".")), "threads": threading.active_count()}
before = state()
for name in names:
    importlib.import_module(name)
after = state()
changed = [key for key in before if before[key] != after[key]]
backends = sorted(sys.modules["jax._src.xla_bridge"]._backends) if "jax" in sys.modules else []
print(json.dumps({"changed": changed, "backends": backends, "jax": "jax" in sys.modules}))
"""


def probe(names: list[str], third_party: tuple[str, ...], folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        input=json.dumps([names, third_party]),
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1, f"importing printed something: {done.stdout}"
    assert done.stderr == ""
    return json.loads(done.stdout)


def test_importing_anything_has_no_side_effects(tmp_path: Path) -> None:
    """No argument is parsed, no variable, handler, file or thread is made, and no device is touched."""
    names = [name for name in modules() if not within(name, "flows")]
    # Imported first, because libraries may set variables of their own when they are imported.
    outcome = probe(names, ("jax", "flax.nnx", "optax", "orbax.checkpoint"), tmp_path)
    assert outcome == {"changed": [], "backends": [], "jax": True}


def test_what_needs_no_accelerator_does_not_wait_for_jax(tmp_path: Path) -> None:
    light = ("nanocode.agent", "nanocode.tasks", "nanocode.data", "nanocode.constitution", "nanocode.cli", "artifacts")
    ground = ["nanocode.config", "nanocode.conversation", "nanocode.tokenizer"]
    names = ground + [name for name in modules() if any(within(name, part) for part in light)]
    assert probe(names, (), tmp_path)["jax"] is False
