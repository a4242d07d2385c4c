"""Who is asked to call a function: a model behind an endpoint by its own function calling, or one of ours.

Ours read the function in the system text and answer with their own tool call. They have never been trained on other
tools than their four: the figure says how far that carries over.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Protocol

import openai

from nanocode.agent.endpoint import MAX_RETRIES, EndpointFailure, EndpointResponder
from nanocode.conversation import MalformedReply, Message, parse_assistant, render_prompt
from nanocode.evaluation.function_calls import CallQuestion, CallReply, typed
from nanocode.inference.engine import Engine
from nanocode.inference.overflow import ContextOverflow

MAX_NEW_TOKENS = 256
_SYSTEM = "You can call this function:\n{}"
Heard = Callable[[int], None]


class FunctionCaller(Protocol):
    """Somebody who answers questions with calls."""

    def replies(self, questions: Sequence[CallQuestion], seed: int, heard: Heard) -> list[CallReply]:
        """One a question, greedy, in their order; `heard` is told how many more are done."""


@dataclass(frozen=True)
class EngineFunctionCaller:
    """A trained model."""

    engine: Engine

    def replies(self, questions: Sequence[CallQuestion], seed: int, heard: Heard) -> list[CallReply]:
        """As `FunctionCaller.replies`. A question that does not fit into the context is an overrun."""
        tokenizer = self.engine.tokenizer
        prompts = {place: render_prompt(_conversation(each), tokenizer) for place, each in enumerate(questions)}
        short = {place: ids for place, ids in prompts.items() if len(ids) < self.engine.context_tokens}
        said = self._generate(short, seed) if short else []
        found = {place: self._reply(questions[place], ids) for place, ids in zip(short, said, strict=True)}
        heard(len(questions))
        return [found.get(place, CallReply(overrun=True)) for place in range(len(questions))]

    def _generate(self, prompts: Mapping[int, list[int]], seed: int) -> list[list[int]]:
        return self.engine.generate(
            list(prompts.values()), max_new_tokens=MAX_NEW_TOKENS, seed=seed, streams=list(prompts)
        )

    def _reply(self, question: CallQuestion, ids: list[int]) -> CallReply:
        try:
            call = parse_assistant(ids, self.engine.tokenizer).tool_call
        except MalformedReply:
            return CallReply(calls=1)
        return CallReply() if call is None else CallReply(1, call.name, typed(question, call.arguments))


@dataclass(frozen=True)
class EndpointFunctionCaller:
    """A model behind an OpenAI-compatible endpoint, `concurrency` questions at a time."""

    base_url: str
    model: str
    api_key: str | None = None
    concurrency: int = 4
    max_retries: int = MAX_RETRIES

    def replies(self, questions: Sequence[CallQuestion], seed: int, heard: Heard) -> list[CallReply]:
        """As `FunctionCaller.replies`. Raises EndpointFailure; questions not begun then are not begun."""
        connection = _Connection(self.base_url, self.model, self.api_key, system=None, max_retries=self.max_retries)

        def ask(question: CallQuestion) -> CallReply:
            reply = connection.call(question, seed)
            heard(1)
            return reply

        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="function") as pool:
            futures = [pool.submit(ask, question) for question in questions]
            try:
                return [future.result() for future in futures]
            finally:
                pool.shutdown(cancel_futures=True)
                connection.close()


class _Connection(EndpointResponder):
    """The same connection and the same errors as for a session, for one question with tools of its own."""

    def call(self, question: CallQuestion, seed: int) -> CallReply:
        """Raises EndpointFailure."""
        try:
            completion = self._client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": question.prompt}],
                tools=[question.tool()],  # type: ignore[list-item]
                temperature=0.0,
                seed=seed,
            )
        except openai.OpenAIError as error:
            failure = self._failure(error, "")
            if isinstance(failure, ContextOverflow):
                return CallReply(overrun=True)
            if isinstance(failure, MalformedReply):
                return CallReply(calls=1)
            raise failure from None
        except json.JSONDecodeError:
            raise EndpointFailure(self._said("sent something that is no JSON: check the address")) from None
        calls = (completion.choices[0].message.tool_calls or []) if completion.choices else []
        return _first(calls)


def _first(calls: Sequence[object]) -> CallReply:
    """The first of the calls, and how many there are."""
    if not calls:
        return CallReply()
    function = getattr(calls[0], "function", None)
    try:
        arguments = json.loads(getattr(function, "arguments", "") or "")
    except ValueError:
        arguments = None
    name = str(getattr(function, "name", ""))
    return CallReply(len(calls), name, arguments if isinstance(arguments, dict) else None)


def _conversation(question: CallQuestion) -> list[Message]:
    """The function as system text, under its own name, then the question."""
    spec = {"name": question.name, "description": question.description, "parameters": question.parameters}
    return [
        Message("system", _SYSTEM.format(json.dumps(spec, ensure_ascii=False))),
        Message("user", question.prompt),
    ]
