"""From a MODEL name to something that answers."""

from __future__ import annotations

from nanocode.agent.session import Responder
from nanocode.cli.context import model_folder, open_repository

MAX_NEW_TOKENS = 96


def load_responder(model: str | None, store: str | None, temperature: float, seed: int) -> Responder:
    """The released model (the newest release without a name) behind the decoding engine.

    Raises UnknownModel, ArtifactError for altered files, ModelError, TokenizerError.
    """
    from artifacts.releases import UnknownModel, list_releases
    from nanocode.inference.engine import Engine, ModelResponder
    from nanocode.model.weights import load_model
    from nanocode.tokenizer import Tokenizer

    repository = open_repository(store)
    if model is None:
        releases = list_releases(repository)
        if not releases:
            raise UnknownModel(f"no model has been released in {repository.store.url} yet: `make run` makes one")
        newest = max(releases, key=lambda release: release.created)
        model = f"{newest.name}@{newest.version}"
    folder = model_folder(repository, model)
    engine = Engine(load_model(folder), Tokenizer.load(folder / "tokenizer.json"))
    return ModelResponder(engine, max_new_tokens=MAX_NEW_TOKENS, temperature=temperature, seed=seed)
