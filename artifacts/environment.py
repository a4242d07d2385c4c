"""What provenance says about the machine: interpreter, library versions, and the commit that is checked out."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path

LIBRARIES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "tokenizers")


def environment() -> dict[str, str | None]:
    """Python, platform and the versions of the libraries that decide bytes (None: not installed); imports none."""
    found: dict[str, str | None] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    return found | {library.replace("-", "_"): _version(library) for library in LIBRARIES}


def git_state(root: Path) -> dict[str, str | bool | None]:
    """`commit` and `dirty` of the checkout whose top folder is `root`; both None without a checkout or git."""
    commit = _git(root, "rev-parse", "HEAD")
    status = _git(root, "status", "--porcelain") if commit is not None else None
    return {"commit": commit, "dirty": None if status is None else status != ""}


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None


def _git(root: Path, *arguments: str) -> str | None:
    # The ceiling keeps git from answering for a repository further up that merely contains this folder.
    variables = os.environ | {"GIT_CEILING_DIRECTORIES": str(root.resolve().parent), "GIT_OPTIONAL_LOCKS": "0"}
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, env=variables, capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
