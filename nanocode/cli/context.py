"""What the commands share: global options, the project's folder, the store, and models as folders."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import typer

from artifacts.releases import resolve
from artifacts.repository import Repository, hash_file
from artifacts.store import ObjectStore, open_store

STORE_VARIABLE = "NANOCODE_STORE"
DEFAULT_STORE = "file:.nanocode/store"


@dataclass
class Settings:
    """The global options; every command finds them in `context.obj`."""

    store: str | None = None
    debug: bool = False


def project_root() -> Path:
    """The folder with `pyproject.toml` that holds this package; without one (installed as a wheel) the working directory."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else Path.cwd()


def chosen_store(context: typer.Context) -> ObjectStore:
    """The store by `--store` (relative to the working directory, as any argument), $NANOCODE_STORE or the default.

    The last two count from the project's folder, so that they mean the same one wherever the command is run. Raises
    WrongStore.
    """
    if context.obj.store:
        return open_store(context.obj.store, Path.cwd())
    return open_store(os.environ.get(STORE_VARIABLE) or DEFAULT_STORE, project_root())


def repository(context: typer.Context) -> Repository:
    """The artifacts of the chosen store; warnings go to stderr."""
    return Repository(chosen_store(context), warn=lambda message: typer.echo(f"warning: {message}", err=True))


def model_folder(context: typer.Context, model: str) -> Path:
    """The folder of a MODEL: a path as it is, else the released record's files, verified, kept in `.nanocode/models`.

    Raises UnknownModel, ArtifactError for files that were altered, StoreError.
    """
    if Path(model).is_dir():
        return Path(model)
    source = repository(context)
    record = source.read_record(resolve(source, model).record)
    kept = project_root() / ".nanocode" / "models"
    folder = kept / record.digest
    if folder.is_dir():
        if all(
            (folder / each.path).is_file() and hash_file(folder / each.path) == each.sha256 for each in record.files
        ):
            return folder
        typer.echo(f"warning: {folder} was altered, taken from the store again", err=True)
    kept.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept) as temporary:
        fresh = source.materialise(record.digest, Path(temporary) / "files")
        if folder.is_dir():
            folder.rename(Path(temporary) / "altered")
        fresh.rename(folder)
    return folder
