"""What the commands share: global options, the project's folder, the store, and models as folders."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from artifacts.releases import resolve
from artifacts.repository import Repository, hash_file
from artifacts.store import CACHE_BYTES, ObjectStore, StoreSettings, open_store

if TYPE_CHECKING:
    from nanocode.config import StoreConfig

STORE_VARIABLE = "NANOCODE_STORE"
DEFAULT_STORE = "file:.nanocode/store"
STORE_HELP = (
    "Where artifacts are kept: file:PATH, s3://BUCKET/PREFIX, gs://BUCKET/PREFIX. "
    f"Default: ${STORE_VARIABLE}, else {DEFAULT_STORE} in the project."
)

StoreOption = Annotated[str | None, typer.Option("--store", help=STORE_HELP)]


@dataclass
class Settings:
    """The global options; every command finds them in `context.obj`."""

    store: str | None = None
    debug: bool = False


def project_root() -> Path:
    """The folder with `pyproject.toml` that holds this package; installed as a wheel, the working directory."""
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() else Path.cwd()


def open_repository(store: str | None) -> Repository:
    """The artifacts of a store: the one asked for, else $NANOCODE_STORE, else the default. Warnings go to stderr.

    A relative path that was asked for counts from the working directory, as any argument does; the other two count
    from the project's folder, so that they mean the same store wherever the command is run. Raises WrongStore.
    """
    return Repository(find_store(store), warn=warn)


def find_store(
    store: str | None, config: StoreConfig | None = None, environment: Mapping[str, str] = os.environ
) -> ObjectStore:
    """The store asked for, else that of $NANOCODE_STORE, else of the config. Raises WrongStore, StoreError."""
    root, url, cache_bytes, unsafe = project_root(), DEFAULT_STORE, CACHE_BYTES, False
    if config is not None:
        url, cache_bytes, unsafe = config.url, config.cache_bytes, config.unsafe_leases
    settings = StoreSettings.chosen(environment, root, cache_bytes=cache_bytes, unsafe_leases=unsafe)
    if store:
        return open_store(store, Path.cwd(), settings, warn)
    return open_store(environment.get(STORE_VARIABLE) or url, root, settings, warn)


def warn(message: str) -> None:
    """Say on stderr what was wrong but could be worked around."""
    typer.echo(f"warning: {message}", err=True)


def model_folder(source: Repository, model: str) -> Path:
    """The folder of a MODEL: a path as it is, else the released record's files, verified, kept in `.nanocode/models`.

    Raises UnknownModel, ArtifactError for files that were altered in the store, StoreError.
    """
    if Path(model).is_dir():
        return Path(model)
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
