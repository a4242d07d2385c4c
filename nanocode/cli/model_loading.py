"""From a MODEL name to something that answers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nanocode.cli.context import model_folder, open_repository, project_root
from nanocode.cli.interrupts import interrupted_afterwards

if TYPE_CHECKING:
    from artifacts.repository import Repository
    from nanocode.inference.engine import Engine
    from nanocode.model.gpt import GPT


@dataclass(frozen=True)
class Found:
    """A model's files. `label` is how it is called here: nano@3, or the folder's name; a folder has no `digest`."""

    label: str
    name: str
    digest: str
    folder: Path


@dataclass(frozen=True)
class LoadedModel:
    """A model behind the decoding engine, and the files that it came from."""

    found: Found
    model: GPT
    engine: Engine


def find_model(model: str | None, store: str | None) -> Found:
    """The files of MODEL (None: the newest release), verified. Raises UnknownModel, ArtifactError for altered files."""
    if model is not None and Path(model).is_dir():
        folder = Path(model)
        return Found(folder.resolve().name, folder.resolve().name, "", folder)
    from artifacts.releases import resolve

    repository = open_repository(store)
    release = resolve(repository, model or _newest(repository))
    label = f"{release.name}@{release.version}"
    return Found(label, release.name, release.record, model_folder(repository, label))


def load_named(model: str | None, store: str | None) -> LoadedModel:
    """MODEL behind the decoding engine. Raises as `find_model` and `load` do.

    Loading JAX takes seconds: a name that means nothing is reported before.
    """
    return load(find_model(model, store))


def load(found: Found) -> LoadedModel:
    """The model in those files. What is compiled for it is kept in `.nanocode/xla`, as in a run.

    Raises ModelError, TokenizerError, and KeyboardInterrupt only before and after JAX is imported.
    """
    with interrupted_afterwards():
        from nanocode.inference.engine import Engine
        from nanocode.model.weights import ModelError, load_model
        from nanocode.tokenizer import Tokenizer
        from nanocode.training.hardware import keep_compiled

    keep_compiled(project_root() / ".nanocode" / "xla")
    tokenizer = Tokenizer.load(found.folder / "tokenizer.json")
    gpt = load_model(found.folder)
    if tokenizer.vocab_size != gpt.vocab_size:
        raise ModelError(
            f"{found.folder}: tokenizer.json has {tokenizer.vocab_size} entries and the model {gpt.vocab_size}: they "
            "are not of one release"
        )
    return LoadedModel(found, gpt, Engine(gpt, tokenizer))


def _newest(repository: Repository) -> str:
    from artifacts.releases import UnknownModel, list_releases

    releases = list_releases(repository)
    if not releases:
        raise UnknownModel(f"no model has been released in {repository.store.url} yet: `make run` makes one")
    newest = max(releases, key=lambda release: release.created)
    return f"{newest.name}@{newest.version}"
