"""The models that `nanocode agent` can talk to: releases behind the engine of this project, or those of an endpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import typer

from nanocode.agent.context import ContextWindow
from nanocode.agent.terminal_commands import Model, Models, ModelUnavailable
from nanocode.agent.tools import TOOLS
from nanocode.cli.context import open_repository
from nanocode.cli.errors import one_line
from nanocode.cli.interrupts import interrupted_afterwards
from nanocode.cli.options import endpoint_key
from nanocode.conversation import render
from nanocode.inference.sampling import Sampling

if TYPE_CHECKING:
    from nanocode.cli.model_loading import LoadedModel

# As models are evaluated; the engine cuts a reply at the end of the context whatever this says.
LEAST_REPLY_TOKENS = 96


@dataclass(frozen=True)
class Request:
    """What was asked for on the command line; None where nothing was said."""

    model: str | None
    store: str | None
    sampling: Sampling
    temperature: float | None
    seed: int | None
    grammar: bool
    endpoint: str | None
    endpoint_model: str | None
    key_variable: str | None
    trained: bool


class Source(Protocol):
    """Where models come from. ``first`` names the one to start with, None for the source's own choice."""

    @property
    def first(self) -> str | None: ...

    def load(self, name: str | None) -> Model: ...

    def names(self) -> list[str]: ...


@dataclass(frozen=True)
class Releases:
    """Trained models in a store, or in folders."""

    request: Request

    @property
    def first(self) -> str | None:
        return self.request.model

    def load(self, name: str | None) -> Model:
        """Raises UnknownModel, ArtifactError for files altered in the store, ModelUnavailable for a useless folder."""
        loaded = _loaded(name, self.request.store)

        from nanocode.inference.grammar import ToolGrammar
        from nanocode.inference.responder import ModelResponder

        tokenizer, size = loaded.engine.tokenizer, loaded.engine.context_tokens
        tools = {spec.name: (spec.required, spec.optional) for spec in TOOLS.values()}
        responder = ModelResponder(
            loaded.engine,
            max_new_tokens=max(LEAST_REPLY_TOKENS, size - ContextWindow.of_model(tokenizer, size).limit_tokens),
            sampling=self.request.sampling,
            grammar=ToolGrammar(tokenizer, tools) if self.request.grammar else None,
        )
        return Model(
            loaded.found.label,
            responder,
            window=lambda: ContextWindow.of_model(tokenizer, size),
            context_tokens=size,
            count=lambda conversation: len(render(conversation, tokenizer).ids) if conversation else 0,
            generated=lambda: responder.generated_tokens,
        )

    def names(self) -> list[str]:
        from artifacts.releases import list_releases

        releases = list_releases(open_repository(self.request.store))
        return [f"{release.name}@{release.version}" for release in releases]


@dataclass(frozen=True)
class EndpointModels:
    """Models of an OpenAI-compatible endpoint, by the names that it gives them."""

    request: Request
    key: str | None = field(repr=False)

    @property
    def first(self) -> str | None:
        return self.request.endpoint_model

    def load(self, name: str | None) -> Model:
        """Makes no request: what is wrong with the name or the key shows in the first turn."""
        from nanocode.agent.endpoint import SYSTEM, EndpointResponder

        assert self.request.endpoint is not None and name is not None, "the command line was checked"
        responder = EndpointResponder(
            self.request.endpoint,
            name,
            self.key,
            temperature=self.request.temperature,
            seed=self.request.seed,
            system=None if self.request.trained else SYSTEM,
        )
        return Model(name, responder)

    def names(self) -> list[str]:
        return []


def chosen_source(request: Request, environment: Mapping[str, str] = os.environ) -> Source:
    """Releases, or the endpoint that was named. Raises BadParameter for options that do not go together."""
    if request.endpoint is None:
        if request.endpoint_model is not None or request.key_variable is not None or request.trained:
            raise typer.BadParameter(
                "say where: --endpoint URL", param_hint="--endpoint-model, --endpoint-key-env, --trained"
            )
        return Releases(request)
    if request.endpoint_model is None:
        raise typer.BadParameter("say which model: --endpoint-model NAME", param_hint="--endpoint")
    if request.model is not None:
        raise typer.BadParameter(f"leave out {request.model}: the endpoint brings the model", param_hint="--endpoint")
    only_here = Sampling(request.sampling.temperature, seed=request.sampling.seed)
    if request.grammar or request.sampling != only_here:
        raise typer.BadParameter(
            "--top-k, --top-p, --min-p and --grammar work with trained releases only: leave them out",
            param_hint="--endpoint",
        )
    return EndpointModels(request, endpoint_key(request.key_variable, environment))


def _loaded(name: str | None, store: str | None) -> LoadedModel:
    from nanocode.cli.model_loading import find_model, load

    found = find_model(name, store)
    with interrupted_afterwards():
        from nanocode.model.weights import ModelError
        from nanocode.tokenizer import TokenizerError

    try:
        return load(found)
    except ModelError as error:
        raise ModelUnavailable(str(error)) from error
    except TokenizerError as error:
        raise ModelUnavailable(f"{error}: take the model from its store again") from error


def switchable(source: Source) -> Models:
    """A source as the terminal's /model uses it.

    Whatever goes wrong leaves the old model in place; a store that is away has no names to list.
    """

    def load(name: str) -> Model:
        try:
            return source.load(name)
        except Exception as error:  # a broken model of any kind must not end the conversation
            raise ModelUnavailable(one_line(error)) from error

    def names() -> list[str]:
        try:
            return source.names()
        except (ValueError, OSError):
            return []

    return Models(load, names)
