"""`nanocode eval --endpoint`: a model behind an OpenAI-compatible address, asked like one of our own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer

from nanocode.cli.options import endpoint_key
from nanocode.config import EvaluationConfig

if TYPE_CHECKING:
    from nanocode.agent.endpoint import EndpointResponder
    from nanocode.evaluation.contestants import RemoteContestant
    from nanocode.evaluation.function_calls_asking import FunctionCaller
    from nanocode.evaluation.human_eval.figures import Completer, Way


@dataclass(frozen=True)
class Remote:
    """Where it is, what it is called there, its key, and how many tasks it works on at a time.

    `system`: open with instructions, which a model of this project needs not.
    """

    url: str
    model: str
    key: str | None
    concurrency: int
    system: bool

    def contestant(self) -> RemoteContestant:
        """For tasks with tools."""
        from nanocode.agent.endpoint import SYSTEM, EndpointResponder
        from nanocode.evaluation.contestants import RemoteContestant

        def responder(temperature: float, config: EvaluationConfig) -> EndpointResponder:
            return EndpointResponder(
                self.url,
                self.model,
                self.key,
                temperature=temperature,
                seed=config.seed,
                system=SYSTEM if self.system else None,
            )

        return RemoteContestant(responder, self.concurrency)

    def caller(self) -> FunctionCaller:
        """For calls of foreign functions."""
        from nanocode.evaluation.function_calls_asking import EndpointFunctionCaller

        return EndpointFunctionCaller(self.url, self.model, self.key, self.concurrency)

    def completer(self, way: Way) -> Completer:
        """For programs. Raises BadParameter for a way in which an endpoint cannot be asked."""
        from nanocode.evaluation.human_eval.endpoint import EndpointCompleter

        try:
            return EndpointCompleter(self.url, self.model, self.key, way, self.concurrency)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--human-eval-way") from None


def remote_of(
    url: str | None,
    model: str | None,
    key_variable: str | None,
    concurrency: int,
    system: bool,
    environment: Mapping[str, str],
) -> Remote | None:
    """What the options describe; None without any of them. Raises BadParameter for half of a description."""
    if url is None or model is None:
        if url is not None or model is not None or key_variable is not None:
            raise typer.BadParameter("go together", param_hint="--endpoint and --endpoint-model")
        return None
    return Remote(url, model, endpoint_key(key_variable, environment), concurrency, system)
