"""A model behind an OpenAI-compatible endpoint on HumanEval, several questions at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import openai

from nanocode.agent.endpoint import MAX_RETRIES, EndpointFailure, EndpointResponder
from nanocode.agent.results import valid_text
from nanocode.agent.sandbox import Sandbox
from nanocode.evaluation.human_eval.asking import agent_answer, chat_answer, chat_message
from nanocode.evaluation.human_eval.figures import Answer, Asked, Way
from nanocode.evaluation.human_eval.problems import Problem
from nanocode.inference.overflow import ContextOverflow


@dataclass(frozen=True)
class EndpointCompleter:
    """``chat``, or ``agent`` with the four tools as functions. An endpoint is given no text to continue: with
    ``completion`` this raises ValueError. Sample s is asked with the seed + s.
    """

    base_url: str
    model: str
    api_key: str | None = None
    way: Way = "chat"
    concurrency: int = 4
    max_retries: int = MAX_RETRIES

    def __post_init__(self) -> None:
        if self.way == "completion":
            raise ValueError("an endpoint takes messages, not a text to continue: ask it by chat or as an agent")

    def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
        """As `Completer.answers`. Raises EndpointFailure; questions that were not begun then are not begun."""
        ask = self._chat if self.way == "chat" else self._work
        samples = [(problem, sample) for problem in problems for sample in range(asked.samples)]
        with ThreadPoolExecutor(self.concurrency, thread_name_prefix="endpoint") as pool:
            futures = [pool.submit(ask, problem, sample, asked) for problem, sample in samples[first:]]
            try:
                for future in futures:
                    yield future.result()
            finally:
                pool.shutdown(cancel_futures=True)

    def _chat(self, problem: Problem, sample: int, asked: Asked) -> Answer:
        connection = _Chat(self.base_url, self.model, self.api_key, system=None, max_retries=self.max_retries)
        try:
            reply, tokens = connection.reply(chat_message(problem), sample, asked)
        except ContextOverflow as error:
            return Answer("", "", "context", str(error))
        finally:
            connection.close()
        return chat_answer(problem, reply, tokens)

    def _work(self, problem: Problem, sample: int, asked: Asked) -> Answer:
        responder = EndpointResponder(
            self.base_url,
            self.model,
            self.api_key,
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            seed=asked.seed + sample,
            max_retries=self.max_retries,
        )
        try:
            return agent_answer(problem, responder, Sandbox())[0]
        finally:
            responder.close()


class _Chat(EndpointResponder):
    """The same connection and the same errors, for one question without tools."""

    def reply(self, text: str, sample: int, asked: Asked) -> tuple[str, int | None]:
        """The reply, and its tokens where the endpoint counts them. Raises ContextOverflow, EndpointFailure."""
        try:
            completion = self._client.chat.completions.create(
                model=self.model,
                messages=[{"role": "user", "content": text}],
                max_tokens=asked.max_new_tokens,
                temperature=asked.temperature,
                seed=asked.seed + sample,
            )
        except openai.OpenAIError as error:
            raise self._failure(error, "") from None
        except json.JSONDecodeError:
            raise EndpointFailure(self._said("sent something that is no JSON: check the address")) from None
        usage = completion.usage
        content = completion.choices[0].message.content if completion.choices else None
        return valid_text(content or ""), None if usage is None else usage.completion_tokens
