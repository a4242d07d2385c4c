"""A model of this project on HumanEval, many problems in one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from nanocode.agent.sandbox import Sandbox
from nanocode.conversation import MalformedReply, Message, assistant_ids, parse_assistant, render_prompt
from nanocode.evaluation.human_eval.asking import agent_answer, chat_answer, chat_message, completion_answer
from nanocode.evaluation.human_eval.figures import Answer, Asked, Way
from nanocode.evaluation.human_eval.problems import Problem

if TYPE_CHECKING:
    from nanocode.evaluation.lockstep import Seat
    from nanocode.inference.engine import Engine

# As many as the engine decodes at once: whoever waits for the first answers does not wait for all.
AT_ONCE = 64


@dataclass(frozen=True)
class EngineCompleter:
    """Sample s of problem p draws from the random stream p * samples + s of the seed, in every way of asking."""

    engine: Engine
    way: Way

    def answers(self, problems: Sequence[Problem], asked: Asked, first: int = 0) -> Iterator[Answer]:
        """As `Completer.answers`."""
        ask = {"completion": self._completions, "chat": self._chats, "agent": self._sessions}[self.way]
        repeated = [problem for problem in problems for _ in range(asked.samples)]
        for start in range(first, len(repeated), AT_ONCE):
            yield from ask(repeated[start : start + AT_ONCE], asked, start)

    def _completions(self, problems: Sequence[Problem], asked: Asked, first: int) -> Iterator[Answer]:
        tokenizer = self.engine.tokenizer

        def answer(problem: Problem, ids: list[int]) -> Answer:
            # A base model ends a document by beginning the next one.
            length = next((at for at, token in enumerate(ids) if token in tokenizer.special_ids), len(ids))
            return completion_answer(problem, tokenizer.decode(ids[:length]), len(ids))

        prompts = [[tokenizer.bos, *tokenizer.encode(problem.prompt)] for problem in problems]
        return self._generated(problems, prompts, asked, first, answer)

    def _chats(self, problems: Sequence[Problem], asked: Asked, first: int) -> Iterator[Answer]:
        tokenizer = self.engine.tokenizer

        def answer(problem: Problem, ids: list[int]) -> Answer:
            try:
                message = parse_assistant(ids, tokenizer)
            except MalformedReply as error:
                return Answer(tokenizer.decode(ids), "", "malformed", str(error), len(ids))
            return chat_answer(problem, message.content, len(ids))

        prompts = [render_prompt([Message("user", chat_message(problem))], tokenizer) for problem in problems]
        return self._generated(problems, prompts, asked, first, answer)

    def _generated(
        self,
        problems: Sequence[Problem],
        prompts: Sequence[list[int]],
        asked: Asked,
        first: int,
        answer: Callable[[Problem, list[int]], Answer],
    ) -> Iterator[Answer]:
        """One answer a prompt; a prompt that does not fit is not asked."""
        context = self.engine.context_tokens
        fitting = [row for row, prompt in enumerate(prompts) if len(prompt) < context]
        replies = self.engine.generate(
            [prompts[row] for row in fitting],
            max_new_tokens=asked.max_new_tokens,
            temperature=asked.temperature,
            seed=asked.seed,
            streams=[first + row for row in fitting],
        )
        by_row = dict(zip(fitting, replies, strict=True))
        for row, problem in enumerate(problems):
            if row in by_row:
                yield answer(problem, by_row[row])
            else:
                told = f"the prompt has {len(prompts[row])} tokens, the model's context {context}"
                yield Answer("", "", "context", told, 0)

    def _sessions(self, problems: Sequence[Problem], asked: Asked, first: int) -> Iterator[Answer]:
        from nanocode.evaluation.lockstep import run_lockstep

        shell = Sandbox()

        def run(index: int, seat: Seat) -> Answer:
            answer, outcome = agent_answer(problems[index], seat, shell)
            return replace(answer, tokens=sum(map(self._tokens, outcome.conversation)))

        yield from run_lockstep(
            self.engine,
            len(problems),
            run,
            temperature=asked.temperature,
            max_new_tokens=asked.max_new_tokens,
            seed=asked.seed,
            first_stream=first,
        )

    def _tokens(self, message: Message) -> int:
        return len(assistant_ids(message, self.engine.tokenizer)) if message.role == "assistant" else 0
